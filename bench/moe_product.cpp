// See moe_product.h.
#include "moe_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "ops/cuda/moe_direct.h"
#include "ops/cuda/moe_stream.h"
#include "ops/cuda/moe_tiles_scratch.h"
#include "ops/cuda/moe_wide.h"
#include "ops/cuda/wgmma_tiles.h"
#include "probe.h"
#include "tensor/dtype.h"
#include "tensor/gpu.h"

namespace mettle::bench {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

PackedMatrix random_matrix(int64_t rows, int64_t cols, RowOrder order, std::mt19937& random) {
  std::vector<uint8_t> codes(static_cast<size_t>(rows * cols / 2)), scales(static_cast<size_t>(rows * cols / 16));
  for (uint8_t& c : codes) c = static_cast<uint8_t>(random());
  for (uint8_t& s : scales) s = static_cast<uint8_t>(0x28 + random() % 16);
  RawMatrix raw{
      .format = WeightFormat::kNvfp4, .rows = rows, .cols = cols, .data = codes.data(), .scales = scales.data()};
  raw.row_bytes = cols / 2;
  raw.scale_row_bytes = cols / 16;
  raw.global_scale = 0.02f;
  return pack_p64({raw}, order);
}

using Products = void (*)(const cuda::MmaTilesArgs&);
struct Engine {
  const char* name;
  cuda::TileEngine engine;
  Products products;
  int most_rows = std::numeric_limits<int>::max();  // of an expert, that it is meant for
};

constexpr int kFewRows = 32;  // groups of 16 read an expert's weights once each

std::vector<Engine> engines([[maybe_unused]] const MoeProblem& p, [[maybe_unused]] const Device& device) {
  std::vector<Engine> all;
#if METTLE_CUDA
  using cuda::TileEngine;
  all.push_back({"mma", TileEngine::kMma, cuda::mma_tiles});
  all.push_back({"stream", TileEngine::kStream, cuda::moe_stream, kFewRows});
  if (cuda::moe_direct_fits(std::max(p.hidden, p.width), device.shared_per_block))
    all.push_back({"direct", TileEngine::kDirect, cuda::moe_direct, kFewRows});
  if (device.sm == 90 && cuda::wgmma_built()) {
    all.push_back({"wgmma", TileEngine::kWgmma, cuda::wgmma_tiles});
    all.push_back({"wide", TileEngine::kWide, cuda::moe_wide});
  }
#endif
  return all;
}

// Weights of all experts on the device: of few different values, each in memory of its own.
class Experts {
 public:
  Experts(const MoeProblem& p, Place& place) {
    constexpr int kDifferent = 4;
    std::mt19937 random(3);
    for (int i = 0; i < kDifferent; ++i) {
      gate_up_.push_back(random_matrix(2 * p.width, p.hidden, RowOrder::kGateUp, random));
      down_.push_back(random_matrix(p.hidden, p.width, RowOrder::kPlain, random));
    }
    const auto placed = [&](const PackedMatrix& m, const uint8_t** payload, const float** row_scale) {
      auto* at = static_cast<uint8_t*>(place.take(m.bytes()));
      place.copy_in(at, m.data, m.bytes());
      *payload = at;
      *row_scale = reinterpret_cast<const float*>(at + (reinterpret_cast<const uint8_t*>(m.row_scale) - m.data));
    };
    pointers_.resize(static_cast<size_t>(p.experts));
    for (size_t e = 0; e < pointers_.size(); ++e) {
      placed(gate_up_[e % kDifferent], &pointers_[e].gate_up, &pointers_[e].gate_up_scale);
      placed(down_[e % kDifferent], &pointers_[e].down, &pointers_[e].down_scale);
    }
  }
  const ExpertPointers& operator[](int e) const { return pointers_[static_cast<size_t>(e)]; }
  cuda::P64View gate_up() const { return cuda::view_of(gate_up_.front()); }
  cuda::P64View down() const { return cuda::view_of(down_.front()); }

 private:
  std::vector<PackedMatrix> gate_up_, down_;
  std::vector<ExpertPointers> pointers_;
};

// Rows of x by position: expert e takes the rows that are e modulo experts / top_k, so top_k different experts a row.
struct Assignment {
  int rows = 0;
  std::vector<int32_t> row_of;
  Assignment(const MoeProblem& p, int per_expert) : rows(per_expert * p.experts / p.top_k) {
    const int classes = p.experts / p.top_k;
    for (int e = 0; e < p.experts; ++e)
      for (int i = 0; i < per_expert; ++i) row_of.push_back(i * classes + e % classes);
  }
};

std::vector<cuda::RowGroup> groups_of(const MoeProblem& p, const Experts& experts, int per_expert, int block_rows) {
  std::vector<cuda::RowGroup> groups;
  for (int e = 0; e < p.experts; ++e)
    for (int done = 0; done < per_expert; done += block_rows)
      groups.push_back({experts[e], e * per_expert + done, std::min(block_rows, per_expert - done)});
  return groups;
}

class Timer {
 public:
  explicit Timer(gpu::Stream& stream) : stream_(stream) {}
  // Microseconds of one call of enqueue: median over half a second of launches without a pause; *first: the first of
  // them after one.
  double operator()(const std::function<void()>& enqueue, double* first = nullptr) {
    constexpr int kCalls = 8;
    gpu::Graph graph(stream_, [&] {
      for (int i = 0; i < kCalls; ++i) enqueue();
    });
    const auto once = [&] {
      const auto begin = Clock::now();
      graph.launch(stream_);
      stream_.wait();
      return us_since(begin) / kCalls;
    };
    once();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const double rested = once();
    if (first != nullptr) *first = rested;
    std::vector<double> times;
    for (const auto begin = Clock::now(); us_since(begin) < 7e5;)
      if (const double us = once(); us_since(begin) > 2e5) times.push_back(us);
    return median(times);
  }

 private:
  gpu::Stream& stream_;
};

template <class T>
T* placed(Place& place, const std::vector<T>& values) {
  auto* at = static_cast<T*>(place.take(values.size() * sizeof(T)));
  place.copy_in(at, values.data(), values.size() * sizeof(T));
  return at;
}

void expect_values(Place& place, const float* y, int64_t count) {
  std::vector<float> some(static_cast<size_t>(std::min<int64_t>(count, 4096)));
  place.copy_out(some.data(), y + count - std::ssize(some), some.size() * sizeof(float));
  if (!std::all_of(some.begin(), some.end(), [](float v) { return std::isfinite(v) && v != 0; }))
    fail(Code::kInternal, "moe product: its last values must be finite and not 0");
}

}  // namespace

MoeProblem moe_shape(const std::string& config_folder) {
  std::ifstream file(config_folder + "/config.json");
  const nlohmann::json c = nlohmann::json::parse(file, nullptr, false);
  if (!c.is_object()) fail(Code::kInvalidRequest, config_folder + "/config.json: must be a JSON object");
  const nlohmann::json& t = c.contains("text_config") ? c.at("text_config") : c;
  const MoeProblem p = {.hidden = t.value("hidden_size", 0),
                        .experts = t.value("num_experts", 0),
                        .top_k = t.value("num_experts_per_tok", 0),
                        .width = t.value("moe_intermediate_size", 0)};
  if (p.hidden < 1 || p.experts < 1 || p.top_k < 1 || p.width < 1 || p.experts % p.top_k != 0)
    fail(
        Code::kInvalidRequest,
        fmt::format("{}: must be a model with experts, and as many as a multiple of those a row takes", config_folder));
  return p;
}

std::vector<MoeProductTime> time_moe_products(const MoeProblem& p, const std::vector<int>& rows_per_expert,
                                              const std::string& device_name) {
  const Device device = find_device(device_name);
  const std::vector<Engine> all = engines(p, device);
  if (device.kind != DeviceKind::kCuda || all.empty())
    fail(Code::kDevice, fmt::format("--device {}: the products of experts are timed on a GPU", device_name));
  const auto weights = gpu::place();
  const Experts experts(p, *weights);
  gpu::Stream stream;
  Timer time(stream);
  std::vector<MoeProductTime> times;
  for (const int per_expert : rows_per_expert) {
    const auto place = gpu::place();
    const Assignment assigned(p, per_expert);
    const int64_t positions = std::ssize(assigned.row_of);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> rows(static_cast<size_t>(assigned.rows) * static_cast<size_t>(p.hidden));
    for (uint16_t& v : rows) v = float_to_bf16(normal(random));
    const auto* x = placed(*place, rows);
    const auto* row_of = placed(*place, assigned.row_of);
    auto* ordered = static_cast<uint16_t*>(
        place->take(static_cast<size_t>(assigned.rows) * static_cast<size_t>(cuda::wide_stride(p.hidden)) * 2));
    auto* h = static_cast<uint16_t*>(place->take(static_cast<size_t>(positions * cuda::wide_stride(p.width)) * 2));
    auto* y = static_cast<float*>(place->take(static_cast<size_t>(positions * p.hidden) * 4));
    for (const Engine& e : all) {
      if (per_expert > e.most_rows) continue;
      const int block_rows = cuda::moe_block_rows(p, assigned.rows, e.engine);
      const std::vector<cuda::RowGroup> groups = groups_of(p, experts, per_expert, block_rows);
      const auto* group = placed(*place, groups);
      const auto* count = placed(*place, std::vector<int32_t>{static_cast<int32_t>(groups.size())});
      const cuda::RowGroups g = {group, count, static_cast<int>(groups.size()), row_of};
      const cuda::RowGroups of_h = {group, count, static_cast<int>(groups.size()), nullptr};
      auto* handle = static_cast<CUstream_st*>(stream.handle());
      const auto gate_up = [&] {
#if METTLE_CUDA
        if (e.engine == cuda::TileEngine::kWide) cuda::moe_wide_order(x, assigned.rows, p.hidden, ordered, handle);
#endif
        e.products({.weight = experts.gate_up(),
                    .x = e.engine == cuda::TileEngine::kWide ? ordered : x,
                    .groups = g,
                    .h = h,
                    .block_rows = block_rows,
                    .stream = handle});
      };
      const auto down = [&] {
        e.products(
            {.weight = experts.down(), .x = h, .groups = of_h, .y = y, .block_rows = block_rows, .stream = handle});
      };
      MoeProductTime t = {.tactic = e.name, .rows_per_expert = per_expert, .rows = assigned.rows};
      t.us = time([&] { gate_up(), down(); }, &t.short_us);
      expect_values(*place, y, positions * p.hidden);
      t.gate_up_us = time(gate_up);
      t.down_us = time(down);
      t.tflops = 2. * assigned.rows * p.top_k * 3. * p.width * p.hidden / t.us * 1e-6;
      times.push_back(t);
    }
  }
  return times;
}

}  // namespace mettle::bench

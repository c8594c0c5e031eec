// What the tests of oracles and reference backends share: running a backend, the judge's element rule, random batches.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/thread_team.h"
#include "ops/backend.h"
#include "ops/batch.h"
#include "ops/expected.h"
#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace mettle::oracle_test {

using Random = std::mt19937;
inline float normal(Random& random) { return std::normal_distribution<float>()(random); }

// Raw weights with their memory.
struct Weights {
  RawSegments raw;
  std::vector<std::shared_ptr<std::vector<uint8_t>>> memory;
};

// One segment per height, elements about gain / sqrt(cols); nvfp4 and fp8 segments have global scales of their own.
inline Weights random_weights(WeightFormat format, const std::vector<int64_t>& heights, int64_t cols, Random& random,
                              float gain = 1) {
  Weights w;
  for (const int64_t rows : heights) {
    RawMatrix m{.format = format, .rows = rows, .cols = cols, .name = "random"};
    const bool nvfp4 = format == WeightFormat::kNvfp4, block = format == WeightFormat::kFp8Block;
    const int64_t bits = nvfp4 ? 4 : format == WeightFormat::kBf16 ? 16 : format == WeightFormat::kF32 ? 32 : 8;
    m.row_bytes = cols * bits / 8;
    m.scale_row_bytes = nvfp4 ? cols / 16 : block ? (cols + 127) / 128 * 4 : 0;
    const int64_t payload = rows * m.row_bytes + 8, scale_rows = nvfp4 ? rows : block ? (rows + 127) / 128 : 0;
    auto memory =
        std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(payload / 4 * 4 + scale_rows * m.scale_row_bytes));
    uint8_t* scales = memory->data() + payload / 4 * 4;
    const float unit = gain / std::sqrt(static_cast<float>(cols));
    const auto fp8 = [&] { return float_to_e4m3(normal(random) * 32); };
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < cols; ++k) {
        uint8_t* at = memory->data() + r * m.row_bytes + k * bits / 8;
        const float value = normal(random) * unit;
        const uint16_t half = float_to_bf16(value);
        switch (format) {
          case WeightFormat::kNvfp4:
            if (k % 2 == 0) *at = static_cast<uint8_t>(random());
            break;
          case WeightFormat::kBf16:
            std::memcpy(at, &half, sizeof half);
            break;
          case WeightFormat::kF32:
            std::memcpy(at, &value, sizeof value);
            break;
          default:
            *at = fp8();
        }
      }
    for (int64_t i = 0; i < scale_rows * m.scale_row_bytes; i += block ? 4 : 1) {
      const float value = std::exp(normal(random) / 2);
      const float scale = value * unit / 32;
      if (block) {
        std::memcpy(scales + i, &scale, sizeof scale);
      } else {
        scales[i] = float_to_e4m3(value * 16);
      }
    }
    if (nvfp4) m.global_scale = unit / 48 * std::exp(normal(random) / 3);
    if (format == WeightFormat::kFp8) m.global_scale = unit / 32 * std::exp(normal(random) / 3);
    m.data = memory->data();
    if (scale_rows > 0) m.scales = scales;
    w.raw.push_back(m);
    w.memory.push_back(std::move(memory));
  }
  return w;
}

// Owned values behind a view.
struct Values {
  Buffer memory;
  TensorView view;
  Values(DType dtype, const Shape& shape)
      : memory(static_cast<size_t>(shape.elements()) * size_of(dtype) + 1), view{memory.data(), dtype, shape} {}
  void set(int64_t i, float value) {
    if (view.dtype == DType::kF32) {
      view.as<float>()[i] = value;
    } else if (view.dtype == DType::kE4M3) {
      view.as<uint8_t>()[i] = float_to_e4m3(value);
    } else {
      view.as<uint16_t>()[i] = float_to_bf16(value);
    }
  }
  float* f32() { return view.as<float>(); }
  void fill(Random& random, float scale = 1) {
    for (int64_t i = 0; i < view.shape.elements(); ++i) set(i, normal(random) * scale);
  }
  Values copy() const {
    Values v(view.dtype, view.shape);
    std::memcpy(v.memory.data(), memory.data(), view.bytes());
    return v;
  }
};

inline std::vector<float> random_vector(int64_t count, Random& random, float mean, float spread) {
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = mean + spread * normal(random);
  return v;
}

inline std::vector<int> all_of(int rows) {
  std::vector<int> v(static_cast<size_t>(rows));
  for (int i = 0; i < rows; ++i) v[static_cast<size_t>(i)] = i;
  return v;
}

// The `reference` backend of an op.
template <class Op>
const Backend<Op>& reference() {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == "reference") return *b;
  fail(Code::kInternal, "no reference backend");
}

// Runs the reference backend with a workspace of exactly the size it asks for.
template <class Op>
void run_reference(typename Op::Args args, int rows, int members = 1) {
  ThreadTeam team(members);
  Stream stream{&team};
  const Backend<Op>& backend = reference<Op>();
  const Device device{.name = "cpu", .model = "", .isas = {Isa::kScalar}};
  ASSERT_TRUE(backend.supports(args.problem, device).ok());
  const Tactic tactic = backend.tactics(args.problem, device).front();
  constexpr size_t kGuard = 64;
  const size_t bytes = backend.workspace(tactic, args.problem, rows, members);
  Buffer workspace(bytes + kGuard);
  std::fill_n(workspace.data(), bytes + kGuard, uint8_t{0x7F});
  if constexpr (requires { args.ws; }) args.ws = {workspace.data(), bytes};
  check_args(args);
  backend.run(tactic, args, stream);
  for (size_t i = 0; i < kGuard; ++i)
    ASSERT_EQ(workspace.data()[bytes + i], 0x7F) << "the backend wrote behind its workspace";
}

inline double value_at(const TensorView& x, int64_t i) {
  if (x.dtype == DType::kE4M3) return e4m3_to_float(x.as<uint8_t>()[i]);
  return x.dtype == DType::kF32 ? static_cast<double>(x.as<float>()[i])
                                : static_cast<double>(bf16_to_float(x.as<uint16_t>()[i]));
}

// Sigmas of the worst element under the judge's element rule (pass: <= 10), in plain words.
struct Worst {
  double sigmas = 0;
  int64_t row = 0, col = 0;
};
inline Worst worst_of(const Expected& e, const auto& get) {
  Worst worst;
  for (int64_t i = 0; i < e.rows * e.cols; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool fp8 = e.dtype == DType::kE4M3;
    const double g = get(i), x = fp8 ? std::clamp(e.value[at], -448., 448.) : e.value[at];
    const int bits = fp8 ? 4 : e.dtype == DType::kBF16 ? 8 : 24, least = fp8 ? -5 : -125;
    const int exponent = g == 0 ? least : std::max(std::ilogb(g) + 1, least);
    double half = std::ldexp(0.5, exponent - bits);
    if (std::fabs(x) < std::fabs(g) && std::fabs(g) == std::ldexp(0.5, exponent) && exponent > least) half /= 2;
    const double over = std::max(std::fabs(g - x) - half, 0.0) - e.jump[at] - 0x1p-126;
    double sigmas = over <= 0 ? 0 : over / std::max(std::hypot(e.sys[at], e.rnd[at]), 1e-300);
    if (!std::isfinite(g) || std::isnan(over)) sigmas = INFINITY;
    if (!(sigmas <= worst.sigmas)) worst = {sigmas, i / e.cols, i % e.cols};
  }
  return worst;
}

inline Worst worst_element(const Expected& e, const float* got) {
  return worst_of(e, [got](int64_t i) { return static_cast<double>(got[i]); });
}
inline Worst worst_element(const Expected& e, const TensorView& got) {
  return worst_of(e, [&got](int64_t i) { return value_at(got, i); });
}

constexpr double kLimit = 10;   // of the judge
constexpr double kHealthy = 5;  // what a healthy backend may use of it

// Sequences with shuffled blocks over one pool.
struct RandomBatch {
  struct Piece {
    int q_len, ctx_len;
  };
  std::vector<std::vector<int32_t>> tables;
  std::vector<BatchSequence> sequences;
  Batch batch;
  int blocks = 0;

  RandomBatch(const std::vector<Piece>& pieces, int block_size, Random& random) {
    std::vector<int32_t> order;
    int rows = 0;
    for (const Piece& p : pieces) {
      blocks += (p.q_len + p.ctx_len + block_size - 1) / block_size;
      rows += p.q_len;
    }
    for (int i = 0; i < blocks; ++i) order.push_back(i);
    for (int i = blocks - 1; i > 0; --i)
      std::swap(order[static_cast<size_t>(i)], order[random() % static_cast<size_t>(i + 1)]);
    size_t next = 0;
    int row = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int count = (pieces[i].q_len + pieces[i].ctx_len + block_size - 1) / block_size;
      tables.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(next),
                          order.begin() + static_cast<std::ptrdiff_t>(next) + count);
      next += static_cast<size_t>(count);
      const int slot = static_cast<int>(i);
      sequences.push_back({row, pieces[i].q_len, pieces[i].ctx_len, nullptr, pieces[i].ctx_len > 0 ? slot : -1, slot});
      row += pieces[i].q_len;
    }
    for (size_t i = 0; i < pieces.size(); ++i) sequences[i].block_table = tables[i].data();
    batch = {rows, block_size, sequences};
  }
  RandomBatch(const RandomBatch&) = delete;
};

}  // namespace mettle::oracle_test

// Proves and times the CUDA kernels on the device at hand: `gpu_kernels [--json FILE] [--proofs]` (--proofs: no
// timing). Proof: float64 oracle on raw weights, element rule of the judge on every row, NaN neighbours, guard bands,
// two runs and a graph replay bitwise. Timing: CUDA graphs over rotating weights (the L2 is cold), medians of replays.
// Exit code 1 when a proof fails.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/launch.h"
#include "ops/cuda/linear_mma.h"
#include "ops/cuda/moe_few_rows.h"
#include "ops/oracle.h"
#include "ops/packed_p64.h"
#include "prove/judge.h"

namespace mettle::cuda {
namespace {

int g_failures = 0;
uint64_t g_comparisons = 0;

template <class T>
struct Device {
  T* data = nullptr;
  size_t count = 0;
  Device() = default;
  explicit Device(size_t n) : count(n) { CUDA_CHECK(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T))); }
  explicit Device(const std::vector<T>& host) : Device(host.size()) { put(host); }
  Device(Device&& o) noexcept : data(std::exchange(o.data, nullptr)), count(o.count) {}
  Device& operator=(Device&& o) noexcept {
    std::swap(data, o.data);
    std::swap(count, o.count);
    return *this;
  }
  ~Device() { cudaFree(data); }
  void put(const std::vector<T>& host) {
    CUDA_CHECK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> host(count);
    CUDA_CHECK(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
};

// Random weights of one format as a checkpoint holds them.
struct RawWeights {
  std::vector<uint8_t> data, scales;
  RawMatrix raw;

  RawWeights(WeightFormat format, int64_t rows, int64_t cols, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 1.f / std::sqrt(static_cast<float>(cols)));
    raw.format = format;
    raw.rows = rows;
    raw.cols = cols;
    raw.name = "random";
    if (format == WeightFormat::kBf16) {
      raw.row_bytes = cols * 2;
      data.resize(static_cast<size_t>(rows * raw.row_bytes));
      for (size_t i = 0; i < data.size(); i += 2) {
        const uint16_t v = float_to_bf16(normal(random));
        std::memcpy(&data[i], &v, 2);
      }
    } else if (format == WeightFormat::kFp8) {
      raw.row_bytes = cols;
      data.resize(static_cast<size_t>(rows * cols));
      for (uint8_t& b : data) b = float_to_e4m3(normal(random) * 1000.f);
      raw.global_scale = 1.f / 1000.f;
    } else {
      raw.row_bytes = cols / 2;
      raw.scale_row_bytes = cols / 16;
      data.resize(static_cast<size_t>(rows * cols / 2));
      scales.resize(static_cast<size_t>(rows * cols / 16));
      for (uint8_t& b : data) b = static_cast<uint8_t>(random());
      for (uint8_t& s : scales) {  // mostly mid-range, some subnormal, some zero
        const uint32_t h = random() % 64;
        s = h == 0 ? 0 : h == 1 ? static_cast<uint8_t>(1 + random() % 7) : static_cast<uint8_t>(0x28 + random() % 0x20);
      }
      raw.scales = scales.data();
      raw.global_scale = 0.3f / std::sqrt(static_cast<float>(cols));
    }
    raw.data = data.data();
  }
};

// A p64 matrix living on the device.
struct OnDevice {
  Device<uint8_t> payload;
  Device<float> row_scale;
  P64View view;
  explicit OnDevice(const P64Matrix& m)
      : payload(std::vector<uint8_t>(m.payload.data(), m.payload.data() + m.bytes())), row_scale(m.row_scale) {
    view = {
        m.format,      static_cast<int>(m.rows), static_cast<int>(m.cols), m.tiles, m.units, m.unit_tiles, payload.data,
        row_scale.data};
  }
};

std::vector<uint16_t> random_bf16(size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> v(n);
  for (uint16_t& x : v) x = float_to_bf16(normal(random));
  return v;
}

constexpr uint32_t kPrefill = 0x7F81A5C3;  // a NaN no conversion writes
constexpr size_t kGuard = 1024;            // floats on both sides of an output

struct GuardedOutput {
  Device<float> memory;
  size_t count;
  explicit GuardedOutput(size_t n) : memory(n + 2 * kGuard), count(n) { reset(); }
  void reset() {
    float fill;
    std::memcpy(&fill, &kPrefill, 4);
    memory.put(std::vector<float>(memory.count, fill));
  }
  float* data() { return memory.data + kGuard; }
  std::vector<float> get(std::string* fault) {
    const std::vector<float> all = memory.get();
    const auto untouched = [&](size_t i) { return std::memcmp(&all[i], &kPrefill, 4) == 0; };
    for (size_t i = 0; i < kGuard; ++i)
      if (!untouched(i) || !untouched(kGuard + count + i)) *fault = "OVERRUN";
    for (size_t i = 0; i < count; ++i)
      if (untouched(kGuard + i)) *fault = "INCOMPLETE_WRITE";
    return {all.begin() + kGuard, all.begin() + static_cast<std::ptrdiff_t>(kGuard + count)};
  }
};

void report(const std::string& what, const std::string& fault, double worst) {
  if (fault.empty() && worst <= judge::kElement) return;
  ++g_failures;
  std::printf("FAILED %s: %s worst %.3g sigmas\n", what.c_str(), fault.empty() ? "WRONG_OUTPUT" : fault.c_str(), worst);
}

// Runs `run` eagerly twice and once from a graph; all three must agree bitwise.
std::vector<float> run_checked(GuardedOutput& out, const std::function<void(cudaStream_t)>& run, std::string* fault) {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<float> first;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  for (int pass = 0; pass < 4; ++pass) {
    out.reset();
    CUDA_CHECK(cudaDeviceSynchronize());
    if (pass < 2) run(stream);
    if (pass == 2) {
      CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      run(stream);
      CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
      CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    }
    if (pass >= 2) CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const std::vector<float> got = out.get(fault);
    if (pass == 0)
      first = got;
    else if (std::memcmp(first.data(), got.data(), got.size() * 4) != 0)
      *fault = pass == 1 ? "NONDETERMINISTIC" : "GRAPH_MISMATCH";
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
  return first;
}

void run_linear(const LinearMmaArgs& a) {
  if (a.weight.format == WeightFormat::kNvfp4) linear_w4a16_mma(a);
  if (a.weight.format == WeightFormat::kFp8) linear_fp8_mma(a);
  if (a.weight.format == WeightFormat::kBf16) linear_bf16_mma(a);
}

double prove_linear(WeightFormat format, int out, int in, std::mt19937& random) {
  const RawWeights w(format, out, in, random);
  const OnDevice weight(pack_p64({w.raw}));
  double most = 0;
  for (const int rows : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33}) {
    const std::vector<uint16_t> host_x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(in), random);
    Device<uint16_t> x(host_x);
    GuardedOutput y(static_cast<size_t>(rows) * static_cast<size_t>(out));
    std::string fault;
    const auto run = [&](cudaStream_t s) {
      run_linear({.weight = weight.view, .x = x.data, .y = y.data(), .rows = rows, .stream = s});
    };
    const std::vector<float> got = run_checked(y, run, &fault);
    std::vector<int> all(static_cast<size_t>(rows));
    for (int i = 0; i < rows; ++i) all[static_cast<size_t>(i)] = i;
    std::vector<uint16_t> mutable_x = host_x;
    const TensorView view{mutable_x.data(), DType::kBF16, {rows, in}};
    const Expected e = oracle::linear({in, out, format, Activation::kBf16}, {w.raw}, view, all, {});
    const judge::ElementResult r = judge::element(e, got);
    g_comparisons += got.size();
    const double worst = r.failures == 0 ? r.worst : INFINITY;
    // Odd rows become NaN: the even ones must not move by a bit.
    for (int m = 1; m < rows; m += 2)
      for (int k = 0; k < in; ++k) mutable_x[static_cast<size_t>(m * in + k)] = 0x7FC0;
    x.put(mutable_x);
    const std::vector<float> poisoned = run_checked(y, run, &fault);
    for (int m = 0; m < rows; m += 2)
      if (std::memcmp(&got[static_cast<size_t>(m) * out], &poisoned[static_cast<size_t>(m) * out],
                      static_cast<size_t>(out) * 4) != 0)
        fault = "ROW_DEPENDENT";
    report(std::string("linear ") + std::string(name_of(format)) + " " + std::to_string(in) + "->" +
               std::to_string(out) + " rows " + std::to_string(rows),
           fault, worst);
    most = std::max(most, worst);
  }
  return most;
}

// A MoE layer: raw weights for the oracle and packed ones on the device.
struct MoeLayer {
  MoeProblem problem;
  std::vector<std::unique_ptr<RawWeights>> store;
  RawMoe raw;
  Device<uint8_t> gate_up, down;
  Device<float> gate_up_scale, down_scale;
  std::unique_ptr<OnDevice> router, shared_gate_up, shared_down;
  MoeFewRowsArgs args;

  MoeLayer(const MoeProblem& p, std::mt19937& random) : problem(p) {
    const auto make = [&](WeightFormat f, int64_t rows, int64_t cols) {
      store.push_back(std::make_unique<RawWeights>(f, rows, cols, random));
      return store.back()->raw;
    };
    raw.router = {make(WeightFormat::kBf16, p.experts, p.hidden)};
    for (int e = 0; e < p.experts; ++e)
      raw.experts.push_back({{make(p.format, p.width, p.hidden), make(p.format, p.width, p.hidden)},
                             {make(p.format, p.hidden, p.width)}});
    raw.shared = {{make(p.format, p.shared_width, p.hidden), make(p.format, p.shared_width, p.hidden)},
                  {make(p.format, p.hidden, p.shared_width)}};
    raw.shared_gate = {make(WeightFormat::kBf16, 1, p.hidden)};
    RawSegments both = raw.router;
    both.push_back(raw.shared_gate[0]);
    router = std::make_unique<OnDevice>(pack_p64(both));
    shared_gate_up = std::make_unique<OnDevice>(pack_p64(raw.shared.gate_up, RowOrder::kGateUp));
    shared_down = std::make_unique<OnDevice>(pack_p64(raw.shared.down));
    args = {.hidden = p.hidden,
            .width = p.width,
            .experts = p.experts,
            .top_k = p.top_k,
            .renormalise = p.renormalise,
            .has_shared = true,
            .shared_gate = true,
            .router = router->view,
            .shared_gate_up = shared_gate_up->view,
            .shared_down = shared_down->view};
    args.gate_up = bank(&RawExpert::gate_up, RowOrder::kGateUp, gate_up, gate_up_scale);
    args.down = bank(&RawExpert::down, RowOrder::kPlain, down, down_scale);
  }

  ExpertBank bank(RawSegments RawExpert::*part, RowOrder order, Device<uint8_t>& payload, Device<float>& scale) {
    std::vector<uint8_t> bytes;
    std::vector<float> scales;
    P64Matrix m;
    for (const RawExpert& e : raw.experts) {
      m = pack_p64(e.*part, order);
      bytes.insert(bytes.end(), m.payload.data(), m.payload.data() + m.bytes());
      scales.insert(scales.end(), m.row_scale.begin(), m.row_scale.end());
    }
    payload = Device<uint8_t>(bytes);
    scale = Device<float>(scales);
    return {{m.format, static_cast<int>(m.rows), static_cast<int>(m.cols), m.tiles, m.units, m.unit_tiles, payload.data,
             scale.data},
            m.bytes(),
            static_cast<int64_t>(m.row_scale.size())};
  }
};

double prove_moe(const MoeProblem& problem, std::mt19937& random) {
  MoeLayer layer(problem, random);
  double most = 0;
  for (const int rows : {1, 2, 3, 7, 8, 9, 16, 17, 31, 32})
    for (const bool equal : {false, true}) {
      if (equal && rows != 8 && rows != 32) continue;  // all rows equal: every row takes the same experts
      std::vector<uint16_t> host_x = random_bf16(static_cast<size_t>(rows * problem.hidden), random);
      if (equal)
        for (int m = 1; m < rows; ++m)
          std::copy_n(host_x.begin(), problem.hidden, host_x.begin() + static_cast<std::ptrdiff_t>(m) * problem.hidden);
      Device<uint16_t> x(host_x);
      GuardedOutput partial(static_cast<size_t>(rows * problem.hidden));
      Device<int32_t> ids(static_cast<size_t>(rows * problem.top_k));
      Device<float> weights(static_cast<size_t>(rows * problem.top_k));
      MoeFewRowsArgs a = layer.args;
      a.rows = rows;
      a.x = x.data;
      a.partial = partial.data();
      a.ids = ids.data;
      a.weights = weights.data;
      Device<uint8_t> scratch(static_cast<size_t>(moe_few_rows_scratch(a)));
      CUDA_CHECK(cudaMemset(scratch.data, 0x7F, scratch.count));
      a.scratch = scratch.data;
      std::string fault;
      const auto run = [&](cudaStream_t s) {
        MoeFewRowsArgs b = a;
        b.stream = s;
        moe_few_rows(b);
      };
      const std::vector<float> got = run_checked(partial, run, &fault);
      const std::vector<int32_t> chosen = ids.get();
      const std::vector<float> got_weights = weights.get();
      std::vector<int> all(static_cast<size_t>(rows));
      for (int i = 0; i < rows; ++i) all[static_cast<size_t>(i)] = i;
      const TensorView view{host_x.data(), DType::kBF16, {rows, problem.hidden}};
      const oracle::RouteExpected route = oracle::route(problem, layer.raw, view, all, chosen.data(), {});
      for (int m = 0; m < rows; ++m) {  // selection: nothing left out may beat something chosen by more than ten sigmas
        double lowest = INFINITY, highest = -INFINITY, sigma = 0;
        for (int e = 0; e < problem.experts; ++e) {
          const size_t i = static_cast<size_t>(m * problem.experts + e);
          const bool in = std::find(&chosen[static_cast<size_t>(m * problem.top_k)],
                                    &chosen[static_cast<size_t>(m * problem.top_k)] + problem.top_k,
                                    e) != &chosen[static_cast<size_t>(m * problem.top_k)] + problem.top_k;
          (in ? lowest : highest) = in ? std::min(lowest, route.score[i]) : std::max(highest, route.score[i]);
          sigma = std::max(sigma, route.sigma[i]);
        }
        if (!(highest - lowest <= 10 * 1.5 * sigma)) fault = "WRONG_SELECTION";
      }
      double worst = judge::element(route.weights, got_weights).worst;
      const judge::ElementResult r = judge::element(oracle::moe(problem, layer.raw, view, all, chosen.data(), {}), got);
      worst = std::max(worst, r.failures == 0 ? r.worst : INFINITY);
      g_comparisons += got.size() + got_weights.size();
      for (int m = 1; m < rows; m += 2)
        std::fill_n(host_x.begin() + static_cast<std::ptrdiff_t>(m) * problem.hidden, problem.hidden, uint16_t{0x7FC0});
      x.put(host_x);
      const std::vector<float> poisoned = run_checked(partial, run, &fault);
      for (int m = 0; m < rows; m += 2)
        if (std::memcmp(&got[static_cast<size_t>(m * problem.hidden)],
                        &poisoned[static_cast<size_t>(m * problem.hidden)],
                        static_cast<size_t>(problem.hidden) * 4) != 0)
          fault = "ROW_DEPENDENT";
      report("moe " + problem.text() + " rows " + std::to_string(rows) + (equal ? " equal" : ""), fault, worst);
      most = std::max(most, worst);
    }
  return most;
}

struct Result {
  std::string name, unit;
  double value = 0, bound = 0;
};
std::vector<Result> g_results;

// Microseconds per call of enqueue(i, stream): a graph of n calls, median of replays.
double graph_time(int n, const std::function<void(int, cudaStream_t)>& enqueue) {
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < n; ++i) enqueue(i, stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < 13; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1000.0 / n);
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  CUDA_CHECK(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

__global__ void fill_kernel(uint32_t* p, size_t words, uint32_t seed, uint32_t keep, uint32_t set) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9E3779B1u ^ seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    p[i] = (x & keep) | set;
  }
}

// Payload of plausible random weights: scale bytes of NVFP4 units end up anywhere, so every byte is kept a fair scale
// too.
Device<uint8_t> random_payload(size_t bytes, WeightFormat format, uint32_t seed) {
  Device<uint8_t> p(bytes);
  const uint32_t keep = format == WeightFormat::kBf16  ? 0x807F807Fu
                        : format == WeightFormat::kFp8 ? 0xBFBFBFBFu
                                                       : 0x8F8F8F8Fu;
  const uint32_t set = format == WeightFormat::kBf16 ? 0x3C003C00u : format == WeightFormat::kFp8 ? 0 : 0x60606060u;
  fill_kernel<<<1056, 256>>>(reinterpret_cast<uint32_t*>(p.data), bytes / 4, seed, keep, set);
  CUDA_CHECK(cudaGetLastError());
  return p;
}

P64View shape_of(WeightFormat format, int out, int in) {
  P64View v{.format = format, .rows = out, .cols = in, .tiles = (out + 15) / 16};
  v.unit_tiles = format == WeightFormat::kBf16  ? 2
                 : format == WeightFormat::kFp8 ? 4
                 : in % 512 == 0                ? 8
                 : in % 256 == 0                ? 4
                                                : 2;
  v.units = (in + 64 * v.unit_tiles - 1) / (64 * v.unit_tiles);
  return v;
}
int64_t unit_bytes_of(const P64View& v) {
  return int64_t{v.unit_tiles} * (v.format == WeightFormat::kNvfp4  ? 576
                                  : v.format == WeightFormat::kBf16 ? 2048
                                                                    : 1024);
}

// Floor of a launch that reads `bytes`, measured on an H200: 1.7 us + bytes / 4.68 TB/s (bench/notes/h200-floor.md).
double floor_us(double bytes) { return 1.7 + bytes / 4.68e6; }

void time_linear(const char* name, WeightFormat format, int out, int in) {
  P64View v = shape_of(format, out, in);
  const int64_t bytes = int64_t{v.tiles} * v.units * unit_bytes_of(v);
  const int copies = static_cast<int>(std::clamp<int64_t>(300'000'000 / bytes + 1, 2, 64));
  const Device<uint8_t> payload = random_payload(static_cast<size_t>(bytes * copies), format, 1);
  const Device<float> scale(std::vector<float>(static_cast<size_t>(v.tiles) * 16, 0.01f));
  std::mt19937 random(3);
  const Device<uint16_t> x(random_bf16(static_cast<size_t>(64) * static_cast<size_t>(in), random));
  const Device<float> y(static_cast<size_t>(64) * static_cast<size_t>(out));
  v.row_scale = scale.data;
  std::printf("%-26s %7.2f MB  floor %6.2f us ", name, bytes / 1e6, floor_us(static_cast<double>(bytes)));
  for (const int rows : {1, 4, 8, 16, 32, 64}) {
    const double us = graph_time(std::max(copies, 24), [&](int i, cudaStream_t s) {
      LinearMmaArgs a{.weight = v, .x = x.data, .y = y.data, .rows = rows, .stream = s};
      a.weight.payload = payload.data + (i % copies) * bytes;
      run_linear(a);
    });
    std::printf(" %d: %6.2f us", rows, us);
    if (rows == 1) std::printf(" (%.0f %%)", 100 * floor_us(static_cast<double>(bytes)) / us);
    g_results.push_back(
        {std::string(name) + "_" + std::to_string(rows) + "rows_us", "us", us, floor_us(static_cast<double>(bytes))});
  }
  std::printf("\n");
}

void time_moe(const char* name, int hidden, int width, int experts, int top_k) {
  const P64View gate_up = shape_of(WeightFormat::kNvfp4, 2 * width, hidden),
                down = shape_of(WeightFormat::kNvfp4, hidden, width);
  const int64_t gate_up_bytes = int64_t{gate_up.tiles} * gate_up.units * unit_bytes_of(gate_up);
  const int64_t down_bytes = int64_t{down.tiles} * down.units * unit_bytes_of(down);
  const int layers = 6;
  const Device<uint8_t> g =
      random_payload(static_cast<size_t>(gate_up_bytes * (experts + 1) * layers), WeightFormat::kNvfp4, 5);
  const Device<uint8_t> d =
      random_payload(static_cast<size_t>(down_bytes * (experts + 1) * layers), WeightFormat::kNvfp4, 6);
  P64View router = shape_of(WeightFormat::kBf16, experts + 1, hidden);
  const int64_t router_bytes = int64_t{router.tiles} * router.units * unit_bytes_of(router);
  const Device<uint8_t> r = random_payload(static_cast<size_t>(router_bytes * layers), WeightFormat::kBf16, 7);
  const Device<float> scale(
      std::vector<float>(static_cast<size_t>(std::max(2 * width, hidden)) * static_cast<size_t>(experts + 1), 1e-4f));
  const Device<float> ones(std::vector<float>(static_cast<size_t>(experts) + 16, 1.f));
  std::mt19937 random(4);
  for (const int rows : {1, 2, 4, 8, 16, 32}) {
    std::vector<Device<uint16_t>> xs;  // a different input per layer and call: other experts
    for (int i = 0; i < 24; ++i) xs.emplace_back(random_bf16(static_cast<size_t>(rows * hidden), random));
    const Device<float> partial(static_cast<size_t>(rows * hidden));
    const Device<int32_t> ids(static_cast<size_t>(rows * top_k));
    const Device<float> weights(static_cast<size_t>(rows * top_k));
    MoeFewRowsArgs a{.rows = rows,
                     .hidden = hidden,
                     .width = width,
                     .experts = experts,
                     .top_k = top_k,
                     .has_shared = true,
                     .shared_gate = true,
                     .router = router,
                     .partial = partial.data,
                     .ids = ids.data,
                     .weights = weights.data};
    a.router.row_scale = ones.data;
    const Device<uint8_t> scratch(static_cast<size_t>(moe_few_rows_scratch(a)));
    a.scratch = scratch.data;
    const auto at = [&](int i, cudaStream_t s, bool dependent) {
      MoeFewRowsArgs b = a;
      const int layer = i % layers;
      b.x = xs[static_cast<size_t>(i) % xs.size()].data;
      b.router.payload = r.data + layer * router_bytes;
      b.gate_up = {gate_up, gate_up_bytes, int64_t{gate_up.tiles} * 16};
      b.down = {down, down_bytes, int64_t{down.tiles} * 16};
      b.gate_up.first.payload = g.data + layer * gate_up_bytes * (experts + 1);
      b.down.first.payload = d.data + layer * down_bytes * (experts + 1);
      b.gate_up.first.row_scale = b.down.first.row_scale = scale.data;
      b.shared_gate_up = b.gate_up.first;
      b.shared_gate_up.payload += experts * gate_up_bytes;
      b.shared_down = b.down.first;
      b.shared_down.payload += experts * down_bytes;
      b.stream = s;
      b.dependent = dependent;
      moe_few_rows(b);
    };
    const double us = graph_time(24, [&](int i, cudaStream_t s) { at(i, s, true); });
    const double plain = graph_time(24, [&](int i, cudaStream_t s) { at(i, s, false); });
    double distinct = 0;  // mean distinct experts of the 24 inputs
    for (int i = 0; i < 24; ++i) {
      at(i, nullptr, false);
      CUDA_CHECK(cudaDeviceSynchronize());
      std::vector<int32_t> host = ids.get();
      std::sort(host.begin(), host.end());
      distinct += static_cast<double>(std::unique(host.begin(), host.end()) - host.begin()) / 24;
    }
    const double bytes =
        (distinct + 1) * static_cast<double>(gate_up_bytes + down_bytes) + static_cast<double>(router_bytes);
    std::printf(
        "%-10s rows %2d  %5.1f experts %7.2f MB  floor of one launch %6.2f us  dependent %6.2f us (%.2f TB/s)  plain "
        "%6.2f us\n",
        name, rows, distinct, bytes / 1e6, floor_us(bytes), us, bytes / us / 1e6, plain);
    g_results.push_back(
        {std::string(name) + "_whole_step_" + std::to_string(rows) + "rows_us", "us", us, floor_us(bytes)});
  }
}

void write_json(const char* path) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  int driver = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  FILE* f = std::fopen(path, "w");
  if (f == nullptr) fail(Code::kDevice, std::string(path) + ": cannot write");
  std::fprintf(f, "{\"device\":\"%s\",\"driver\":%d,\"comparisons\":%llu,\"failures\":%d,\"results\":[",
               properties.name, driver, static_cast<unsigned long long>(g_comparisons), g_failures);
  for (size_t i = 0; i < g_results.size(); ++i)
    std::fprintf(f, "%s\n{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"bound\":%.3f}", i > 0 ? "," : "",
                 g_results[i].name.c_str(), g_results[i].value, g_results[i].unit.c_str(), g_results[i].bound);
  std::fprintf(f, "\n]}\n");
  std::fclose(f);
}

int run(int argc, char** argv) {
  const char* json = nullptr;
  bool timing = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc)
      json = argv[++i];
    else if (std::strcmp(argv[i], "--proofs") == 0)
      timing = false;
    else
      fail(Code::kInvalidRequest, std::string(argv[i]) + ": known are --json FILE and --proofs");
  }
  std::mt19937 random(11);
  for (const WeightFormat f : {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16})
    for (const auto& [out, in] :
         {std::pair{16, 128}, {40, 256}, {129, 768}, {512, 2048}, {256, 4096}, {80, 8192}, {64, 512}}) {
      const double worst = prove_linear(f, out, in, random);
      std::printf("linear %-6s %5d -> %-5d worst %.3f of %.0f sigmas\n", std::string(name_of(f)).c_str(), in, out,
                  worst, judge::kElement);
    }
  const MoeProblem moe{
      .hidden = 1024, .experts = 24, .top_k = 4, .width = 512, .shared_width = 512, .shared_gate = true};
  std::printf("%s worst %.3f of %.0f sigmas\n", moe.text().c_str(), prove_moe(moe, random), judge::kElement);
  MoeProblem wide = moe;
  wide.hidden = 2048;
  wide.experts = 40;
  wide.top_k = 8;
  wide.renormalise = false;
  std::printf("%s worst %.3f of %.0f sigmas\n", wide.text().c_str(), prove_moe(wide, random), judge::kElement);
  std::printf("proofs: %d failures, %llu comparisons\n", g_failures, static_cast<unsigned long long>(g_comparisons));
  if (g_failures == 0 && timing) {
    time_linear("nvfp4_12288x4096", WeightFormat::kNvfp4, 12288, 4096);
    time_linear("nvfp4_head_248320x2048", WeightFormat::kNvfp4, 248320, 2048);
    time_linear("fp8_qkv_z_12288x2048", WeightFormat::kFp8, 12288, 2048);
    time_linear("fp8_out_2048x4096", WeightFormat::kFp8, 2048, 4096);
    time_linear("bf16_qkv_z_12288x2048", WeightFormat::kBf16, 12288, 2048);
    time_linear("bf16_20480x4096", WeightFormat::kBf16, 20480, 4096);
    time_linear("bf16_router_257x2048", WeightFormat::kBf16, 257, 2048);
    time_moe("moe_35b", 2048, 512, 256, 8);
    time_moe("moe_397b", 4096, 1024, 512, 10);
  }
  if (json != nullptr) write_json(json);
  return g_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mettle::cuda

int main(int argc, char** argv) {
  try {
    return mettle::cuda::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}

#include "prove/ceiling.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "prove/ceiling_cpu.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;

// Rows picked by index are read once and written once: both count.
Ceiling probe_gpu() {
  constexpr size_t kRow = size_t{1} << 20;
  constexpr int kRounds = 10;
  const int rows = static_cast<int>(std::clamp<int64_t>(gpu::free_memory() / 8 / static_cast<int64_t>(kRow), 1, 2048));
  const size_t bytes = kRow * static_cast<size_t>(rows);
  const std::unique_ptr<Place> place = gpu::place();
  void* from = place->take(bytes);
  void* to = place->take(bytes);
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  auto* index = static_cast<int32_t*>(place->take(order.size() * sizeof(int32_t)));
  place->copy_in(index, order.data(), order.size() * sizeof(int32_t));
  gpu::Stream stream;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    gpu::gather_rows(to, from, index, rows, kRow, stream.handle());
    stream.wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds / 1e9);
  }
  return {{{static_cast<int64_t>(2 * bytes), best}}, {}};
}

}  // namespace

double Ceiling::read_gbs(double footprint) const {
  for (const ReadRate& r : reads)
    if (footprint <= static_cast<double>(r.bytes)) return r.gbs;
  return reads.empty() ? 0 : reads.back().gbs;
}

double Ceiling::gflops(Activation activation) const {
  double best = 0;
  for (const MathRate& m : math)
    if (activation == Activation::kBf16 || m.name == "fma_f32") best = std::max(best, m.gflops);
  return best;
}

Ceiling probe_ceiling(const Device& device, int threads) {
  return device.kind == DeviceKind::kCuda ? probe_gpu() : probe_cpu(device, threads);
}

}  // namespace mettle

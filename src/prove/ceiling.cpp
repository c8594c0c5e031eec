#include "prove/ceiling.h"

#include <algorithm>
#include <chrono>

#include "prove/ceiling_cpu.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;

// A copy reads and writes each byte once: both count. What fits the GPU's L2 may be faster than this.
Ceiling probe_gpu() {
  constexpr int kRounds = 10;
  constexpr size_t kMost = size_t{2} << 30, kLeast = size_t{1} << 20;
  const size_t bytes = std::clamp(static_cast<size_t>(gpu::free_memory()) / 8, kLeast, kMost);
  const std::unique_ptr<Place> place = gpu::place();
  void* from = place->take(bytes);
  void* to = place->take(bytes);
  gpu::Stream stream;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    gpu::copy_on_device(to, from, bytes, stream.handle());
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

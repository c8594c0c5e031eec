// sample on a GPU, radix: several blocks per row. One pass finds the best token and the sum of exp; a second one deals
// the tokens of drawing rows into bins of mass by their distance from the best; a third one picks those of the few bins
// in which a limit or the drawn number falls, and only these are sorted.
#include "ops/cuda/sample_kernels.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

constexpr size_t kShared = cuda::kSampleList * sizeof(uint64_t);

Verdict supports(const SampleProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (p.usable > cuda::kSampleIds)
    return refuse(VerdictCode::kShapeUnsupported, std::to_string(p.usable) + " ids",
                  std::to_string(cuda::kSampleIds) + " at most");
  if (device.shared_per_block < kShared + 2048)
    return refuse(VerdictCode::kSmemTooSmall, std::to_string(device.shared_per_block) + " bytes",
                  std::to_string(kShared + 2048));
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const SampleArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  const cuda::SampleChanges changes = cuda::carve_changes(carver, a.problem, a.rows);
  cuda::sample_radix(cuda::launch_of(a, changes), cuda::carve_scratch(carver, a.problem, a.rows),
                     static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<SampleOp> sample_cuda_radix;
const Backend<SampleOp> sample_cuda_radix = {
    .name = "radix",
    .numerics = {},
    .layout = Layout::kNone,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const SampleProblem&, const Device&) -> std::vector<Tactic> {
      return {{"chunks", Isa::kScalar, 0}};
    },
    .workspace =
        [](const Tactic&, const SampleProblem& p, int rows, int) {
          reference::Carver carver({});
          cuda::carve_changes(carver, p, rows);
          cuda::carve_scratch(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

// sample on a GPU, reference: one block per row, plain passes over the row.
#include "ops/cuda/sample_kernels.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

Verdict supports(const SampleProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (p.usable > cuda::kSampleIds)
    return refuse(VerdictCode::kShapeUnsupported, std::to_string(p.usable) + " ids",
                  std::to_string(cuda::kSampleIds) + " at most");
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const SampleArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  cuda::sample_reference(cuda::launch_of(a, cuda::carve_changes(carver, a.problem, a.rows)),
                         static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<SampleOp> sample_cuda_reference;
const Backend<SampleOp> sample_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kNone,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const SampleProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const SampleProblem& p, int rows, int) {
          reference::Carver carver({});
          cuda::carve_changes(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

// join on a GPU, reference: one block per row, plain loops.
#include "ops/cpu/reference_math.h"
#include "ops/cuda/join_kernels.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

Verdict supports(const JoinProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (p.ranks > cuda::kJoinRanks)
    return refuse(VerdictCode::kShapeUnsupported, std::to_string(p.ranks) + " ranks",
                  std::to_string(cuda::kJoinRanks) + " at most");
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const JoinArgs& a, Stream& stream) {
  cuda::join_reference(a, static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<JoinOp> join_cuda_reference;
const Backend<JoinOp> join_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kNone,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const JoinProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace = [](const Tactic&, const JoinProblem&, int, int) -> size_t { return 0; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

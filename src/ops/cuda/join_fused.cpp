// join on a GPU, fused: the row stays in registers between the sum and the norm; the weight is asked for before the
// kernel ahead has ended.
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
  if (p.hidden % 4 != 0 || p.hidden > cuda::kJoinFusedMost)
    return refuse(VerdictCode::kShapeUnsupported, "rows of " + std::to_string(p.hidden),
                  "a multiple of 4 up to " + std::to_string(cuda::kJoinFusedMost));
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const JoinArgs& a, Stream& stream) {
  cuda::join_fused(a, static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<JoinOp> join_cuda_fused;
const Backend<JoinOp> join_cuda_fused = {
    .name = "fused",
    .numerics = {},
    .layout = Layout::kNone,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const JoinProblem&, const Device&) -> std::vector<Tactic> {
      return {{"row_block", Isa::kScalar, 0}};
    },
    .workspace = [](const Tactic&, const JoinProblem&, int, int) -> size_t { return 0; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

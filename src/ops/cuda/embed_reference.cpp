// embed on a GPU, reference: a copy bound by memory, so the plain kernel is the fast one.
#include "ops/cuda/embed_reference.h"

#include "ops/cpu/reference_math.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

Verdict supports(const EmbedProblem&, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const EmbedArgs& a, Stream& stream) { cuda::embed(a, static_cast<CUstream_st*>(stream.cuda)); }
#endif

}  // namespace

extern const Backend<EmbedOp> embed_cuda_reference;
const Backend<EmbedOp> embed_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kNone,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const EmbedProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace = [](const Tactic&, const EmbedProblem&, int, int) -> size_t { return 0; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

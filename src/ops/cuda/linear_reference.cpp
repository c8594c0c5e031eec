// linear on a GPU, reference: one plain float32 product.
#include "ops/cpu/reference_math.h"
#include "ops/cuda/reference_product.h"
#include "ops/cuda/support.h"
#include "ops/linear.h"

namespace mettle {
namespace {

Verdict supports(const LinearProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (Verdict v = cuda_weight("weight", p.format, p.in); !v.ok()) return v;
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const LinearArgs& a, Stream& stream) {
  cuda::reference_product(cuda::matrix_of(*a.weight), a.x.as<uint16_t>(), a.y.as<float>(), a.rows, stream.cuda);
}
#endif

}  // namespace

extern const Backend<LinearOp> linear_cuda_reference;
const Backend<LinearOp> linear_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const LinearProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace = [](const Tactic&, const LinearProblem&, int, int) -> size_t { return 0; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

// linear on a GPU, reference: one plain float32 product.
#include "ops/cpu/reference_math.h"
#include "ops/cuda/linear_support.h"
#include "ops/cuda/reference_product.h"

namespace mettle {
namespace {

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
    .supports = cuda_linear,
    .tactics = [](const LinearProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace = [](const Tactic&, const LinearProblem&, int, int) -> size_t { return 0; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

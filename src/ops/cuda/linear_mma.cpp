// linear, CUDA "mma": the few-row kernel. See linear_mma.h.
#include "ops/cuda/linear_mma.h"

#include "ops/cuda/linear_support.h"

namespace mettle {
namespace {

#if METTLE_CUDA
void run(const Tactic&, const LinearArgs& a, Stream& stream) {
  cuda::linear_mma({.weight = cuda::view_of(*a.weight),
                    .x = a.x.as<uint16_t>(),
                    .y = a.y.as<float>(),
                    .rows = a.rows,
                    .stream = static_cast<CUstream_st*>(stream.cuda)});
}
#endif

}  // namespace

extern const Backend<LinearOp> linear_cuda_mma;
const Backend<LinearOp> linear_cuda_mma = {
    .name = "mma",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = cuda_linear,
    .tactics = [](const LinearProblem&, const Device&) { return std::vector<Tactic>{{.name = "mma"}}; },
    .workspace = [](const Tactic&, const LinearProblem&, int, int) { return size_t{0}; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

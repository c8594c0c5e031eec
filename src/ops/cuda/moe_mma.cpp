// moe, CUDA "w4a16_mma": the few-row kernels. See moe_few_rows.h.
#include <fmt/format.h>

#include <algorithm>

#include "ops/cuda/moe_few_rows_scratch.h"
#include "ops/cuda/moe_support.h"

namespace mettle {
namespace {

Verdict supports(const MoeProblem& p, const Device& device) {
  if (p.format != WeightFormat::kNvfp4)
    return refuse(VerdictCode::kFormatUnsupported, fmt::format("experts in {}", name_of(p.format)), "nvfp4");
  return cuda_moe(p, device);
}

size_t workspace(const Tactic&, const MoeProblem& p, int rows, int) {
  size_t bytes = 0;
  cuda::carve_moe_few_rows(p, std::min(rows, cuda::kFewRows), nullptr, &bytes);
  return bytes;
}

#if METTLE_CUDA
void run(const Tactic&, const MoeArgs& a, Stream& stream) {
  cuda::moe_few_rows(a, static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<MoeOp> moe_cuda_mma;
const Backend<MoeOp> moe_cuda_mma = {
    .name = "w4a16_mma",
    .numerics = {.h = Rounds::kBf16},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const MoeProblem&, const Device&) { return std::vector<Tactic>{{.name = "mma"}}; },
    .workspace = workspace,
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

// moe, CUDA "fused_small": a single row (`packets`) or up to 16 of them (`rows`) in one kernel. See moe_fused_small.h
// and moe_fused_rows.h.
#include "ops/cuda/moe_fused_small.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/cuda/moe_few_rows_scratch.h"
#include "ops/cuda/moe_fused_rows.h"
#include "ops/cuda/moe_support.h"

namespace mettle {
namespace {

Verdict supports(const MoeProblem& p, const Device& device) {
  const auto refuse_shape = [](const char* what, int got, const std::string& wanted) {
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} {}", what, got), wanted,
                  fmt::format("{} must be {}, is {}", what, wanted, got));
  };
  if (p.format != WeightFormat::kNvfp4)
    return refuse(VerdictCode::kFormatUnsupported, fmt::format("experts in {}", name_of(p.format)), "nvfp4");
  if (p.router_format != WeightFormat::kBf16)
    return refuse(VerdictCode::kFormatUnsupported, fmt::format("router in {}", name_of(p.router_format)), "bf16");
  if (p.hidden % 512 != 0 || p.hidden > cuda::kFusedHidden)
    return refuse_shape("hidden", p.hidden, fmt::format("a multiple of 512, at most {}", cuda::kFusedHidden));
  if ((p.width % 512 != 0 && p.width % 256 == 0) || p.width > cuda::kFusedWidth)
    return refuse_shape("width", p.width,
                        fmt::format("a multiple of 512 or none of 256, at most {}", cuda::kFusedWidth));
  if (p.shared_width > 0 && !cuda::shared_rides(p))
    return refuse(
        VerdictCode::kShapeUnsupported,
        fmt::format("shared expert of width {} in {}", p.shared_width, name_of(p.shared_format)),
        fmt::format("width {} in {}, as the others", p.width, name_of(p.format)),
        fmt::format("its one kernel takes the shared expert as one more of the others, width {} in {}; this one has "
                    "width {} in {}",
                    p.width, name_of(p.format), p.shared_width, name_of(p.shared_format)));
  return cuda_moe(p, device);
}

enum Variant { kPackets, kRows };

std::vector<Tactic> tactics(const MoeProblem& p, const Device& device) {
  std::vector<Tactic> all{{.name = "packets", .variant = kPackets}};
  if (cuda::moe_fused_rows_most(p, device.multiprocessors, device.shared_per_block) > 0)
    all.push_back({.name = "rows", .variant = kRows});
  return all;
}

size_t workspace(const Tactic&, const MoeProblem& p, int rows, int) {
  size_t bytes = 0;
  cuda::carve_moe_few_rows(p, std::min(rows, cuda::kFewRows), nullptr, &bytes);
  return bytes;
}

#if METTLE_CUDA
void run(const Tactic& tactic, const MoeArgs& a, Stream& stream) {
  const auto one_kernel = tactic.variant == kRows ? cuda::moe_fused_rows : cuda::moe_fused_small;
  one_kernel(a, static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<MoeOp> moe_cuda_fused_small;
const Backend<MoeOp> moe_cuda_fused_small = {
    .name = "fused_small",
    .numerics = {.h = Rounds::kBf16},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = tactics,
    .workspace = workspace,
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

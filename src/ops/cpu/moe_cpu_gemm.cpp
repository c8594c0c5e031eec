// moe, cpu_gemm: many rows, weights decoded once per panel of tiles.
#include "ops/cpu/moe_product.h"

namespace mettle {

extern const Backend<MoeOp> moe_cpu_gemm = {
    .name = "cpu_gemm",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = cpu::moe_supports,
    .tactics = [](const MoeProblem&, const Device& device) { return isa_tactics(device); },
    .workspace = [](const Tactic& tactic, const MoeProblem& p, int rows,
                    int members) { return cpu::moe_workspace(cpu::Method::kGemm, tactic, p, rows, members); },
    .run = [](const Tactic& tactic, const MoeArgs& args,
              Stream& stream) { cpu::moe_run(cpu::Method::kGemm, tactic, args, stream); },
};

}  // namespace mettle

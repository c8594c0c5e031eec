// linear, cpu_gemm: many rows, weights decoded once per panel of tiles.
#include "ops/cpu/linear_product.h"

namespace mettle {

extern const Backend<LinearOp> linear_cpu_gemm = {
    .name = "cpu_gemm",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = cpu::linear_supports,
    .tactics = [](const LinearProblem&, const Device& device) { return isa_tactics(device); },
    .workspace = [](const Tactic& tactic, const LinearProblem& p, int rows,
                    int members) { return cpu::linear_workspace(cpu::Method::kGemm, tactic, p, rows, members); },
    .run = [](const Tactic& tactic, const LinearArgs& args,
              Stream& stream) { cpu::linear_run(cpu::Method::kGemm, tactic, args, stream); },
};

}  // namespace mettle

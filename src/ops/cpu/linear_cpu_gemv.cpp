// linear, cpu_gemv: few rows, packed weights read as they are.
#include "ops/cpu/linear_product.h"

namespace mettle {

extern const Backend<LinearOp> linear_cpu_gemv = {
    .name = "cpu_gemv",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = cpu::linear_supports,
    .tactics = [](const LinearProblem&, const Device& device) { return isa_tactics(device); },
    .workspace = [](const Tactic& tactic, const LinearProblem& p, int rows,
                    int members) { return cpu::linear_workspace(cpu::Method::kGemv, tactic, p, rows, members); },
    .run = [](const Tactic& tactic, const LinearArgs& args,
              Stream& stream) { cpu::linear_run(cpu::Method::kGemv, tactic, args, stream); },
};

}  // namespace mettle

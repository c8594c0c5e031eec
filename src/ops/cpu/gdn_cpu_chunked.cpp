// gdn, cpu_chunked: for prompts. 16 rows at a time, as products of matrices, still in float32 throughout.
#include "ops/cpu/gdn_around.h"

namespace mettle {
namespace {

constexpr cpu::Recurrence kRecurrence = {
    .delta = [](const cpu::Kernels& kernels, const cpu::DeltaArgs& a) { kernels.delta_chunk(a); },
    .own_floats = [](const GdnProblem& p) { return cpu::delta_chunk_scratch(p.dk, p.dv); },
};

}  // namespace

extern const Backend<GdnOp> gdn_cpu_chunked = {
    .name = "cpu_chunked",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = cpu::gdn_supports,
    .tactics = [](const GdnProblem&, const Device& device) { return cpu::isa_gemm_tactics(device); },
    .workspace = [](const Tactic& tactic, const GdnProblem& p, int rows,
                    int members) { return cpu::gdn_workspace(kRecurrence, tactic, p, rows, members); },
    .run = [](const Tactic& tactic, const GdnArgs& args,
              Stream& stream) { cpu::gdn_run(kRecurrence, tactic, args, stream); },
};

}  // namespace mettle

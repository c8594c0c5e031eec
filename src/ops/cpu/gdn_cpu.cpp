// gdn, cpu: the state row by row, 64 of its columns at a time.
#include "ops/cpu/gdn_around.h"

namespace mettle {
namespace {

constexpr cpu::Recurrence kRecurrence = {
    .delta = [](const cpu::Kernels& kernels, const cpu::DeltaArgs& a) { kernels.delta(a); },
    .own_floats = [](const GdnProblem&) { return size_t{0}; },
};

}  // namespace

extern const Backend<GdnOp> gdn_cpu = {
    .name = "cpu",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = cpu::gdn_supports,
    .tactics = [](const GdnProblem&, const Device& device) { return cpu::isa_method_tactics(device); },
    .workspace = [](const Tactic& tactic, const GdnProblem& p, int rows,
                    int members) { return cpu::gdn_workspace(kRecurrence, tactic, p, rows, members); },
    .run = [](const Tactic& tactic, const GdnArgs& args,
              Stream& stream) { cpu::gdn_run(kRecurrence, tactic, args, stream); },
};

}  // namespace mettle

// join, cpu: one pass over a row for each partial, one for the norm, one for the product; rows spread over the team.
#include "ops/cpu/product.h"
#include "ops/join.h"

namespace mettle {
namespace {

void run(const Tactic& tactic, const JoinArgs& a, Stream& stream) {
  const JoinProblem& p = a.problem;
  const cpu::Kernels& kernels = cpu::kernels_of(tactic.isa);
  const int64_t hidden = p.hidden;
  const bool bf16 = p.activation == Activation::kBf16;
  reference::for_each(stream, a.rows, [&](int64_t row) {
    float* residual = a.residual.as<float>() + row * hidden;
    for (const float* partial : a.partials) kernels.add(residual, partial + row * hidden, hidden);
    const float scale = 1.f / std::sqrt(kernels.dot(residual, residual, hidden) / static_cast<float>(hidden) + p.eps);
    kernels.normed(residual, scale, a.weight, p.plus_one ? 1.f : 0.f, a.x.as<uint8_t>() + row * hidden * (bf16 ? 2 : 4),
                   hidden, bf16);
  });
}

}  // namespace

extern const Backend<JoinOp> join_cpu = {
    .name = "cpu",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = [](const JoinProblem&, const Device& device) { return cpu::cpu_supports(device, {}); },
    .tactics = [](const JoinProblem&, const Device& device) { return isa_tactics(device); },
    .workspace = [](const Tactic&, const JoinProblem&, int, int) -> size_t { return 0; },
    .run = run,
};

}  // namespace mettle

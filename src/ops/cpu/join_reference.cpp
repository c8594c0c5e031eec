// join, reference: the pending partials added in rank order, then the norm of the new residual.
#include "ops/cpu/reference_math.h"
#include "ops/join.h"

namespace mettle {
namespace {

void run(const Tactic&, const JoinArgs& a, Stream& stream) {
  const JoinProblem& p = a.problem;
  const int64_t hidden = p.hidden;
  reference::for_each(stream, a.rows, [&](int64_t row) {
    float* residual = a.residual.as<float>() + row * hidden;
    for (const float* partial : a.partials)
      for (int64_t i = 0; i < hidden; ++i) residual[i] += partial[row * hidden + i];
    const float scale = reference::inverse_rms(residual, hidden, p.eps);
    const auto normed = [&](int64_t i) { return residual[i] * scale * (p.plus_one ? 1.f + a.weight[i] : a.weight[i]); };
    if (p.activation == Activation::kF32) {
      float* x = a.x.as<float>() + row * hidden;
      for (int64_t i = 0; i < hidden; ++i) x[i] = normed(i);
    } else {
      uint16_t* x = a.x.as<uint16_t>() + row * hidden;
      for (int64_t i = 0; i < hidden; ++i) x[i] = float_to_bf16(normed(i));
    }
  });
}

}  // namespace

extern const Backend<JoinOp> join_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = [](const JoinProblem&, const Device& device) { return reference::on_cpu(device); },
    .tactics = [](const JoinProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace = [](const Tactic&, const JoinProblem&, int, int) -> size_t { return 0; },
    .run = run,
};

}  // namespace mettle

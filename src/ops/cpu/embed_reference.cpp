// embed, reference: one bf16 row of the table widened per token.
#include "ops/cpu/reference_math.h"
#include "ops/embed.h"

namespace mettle {
namespace {

void run(const Tactic&, const EmbedArgs& a, Stream& stream) {
  const int64_t hidden = a.problem.hidden;
  reference::for_each(stream, a.rows, [&](int64_t row) {
    const uint16_t* from = a.table.as<uint16_t>() + a.ids[row] * hidden;
    float* to = a.residual.as<float>() + row * hidden;
    for (int64_t i = 0; i < hidden; ++i) to[i] = bf16_to_float(from[i]);
  });
}

}  // namespace

extern const Backend<EmbedOp> embed_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = [](const EmbedProblem&, const Device& device) { return reference::on_cpu(device); },
    .tactics = [](const EmbedProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace = [](const Tactic&, const EmbedProblem&, int, int) -> size_t { return 0; },
    .run = run,
};

}  // namespace mettle

// linear, reference: one float32 sum per output, k ascending.
#include "ops/cpu/reference_math.h"
#include "ops/linear.h"

namespace mettle {
namespace {

using reference::kRows;
using reference::Rows;

void run(const Tactic&, const LinearArgs& a, Stream& stream) {
  const LinearProblem& p = a.problem;
  reference::Carver carver(a.ws);
  const Rows x = reference::take_rows(carver, kRows, p.in);
  for (int first = 0; first < a.rows; first += kRows) {
    const int count = std::min(kRows, a.rows - first);
    reference::widen(a.x, first, count, x);
    reference::product(*a.weight, x, Rows{a.y.as<float>() + static_cast<int64_t>(first) * p.out, p.out}, count, stream);
  }
}

}  // namespace

extern const Backend<LinearOp> linear_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = [](const LinearProblem&, const Device& device) { return reference::on_cpu(device); },
    .tactics = [](const LinearProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const LinearProblem& p, int, int) {
          reference::Carver carver({});
          reference::take_rows(carver, kRows, p.in);
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

// sample, cpu_shared: all threads share one row's vocabulary, row after row. For the few rows of a small step.
#include "ops/cpu/sample_row.h"

namespace mettle {
namespace {

Verdict supports(const SampleProblem& p, const Device& device) {
  if (cpu::sample_slices(p, 2) < 2)
    return refuse(VerdictCode::kShapeUnsupported, std::to_string(p.usable) + " ids",
                  std::to_string(3 * cpu::SampleScratch::kPiece + 1) + " at least: two slices of two pieces");
  return cpu::cpu_supports(device, {});
}

void run(const Tactic& tactic, const SampleArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  const int slices = cpu::sample_slices(a.problem, reference::members_of(stream));
  const cpu::SampleScratch scratch = cpu::SampleScratch::carve(carver, a.problem, slices);
  for (int r = 0; r < a.rows; ++r) {
    const auto i = static_cast<size_t>(r);
    cpu::SampleRowParts row(cpu::kernels_of(tactic.isa), a.problem, scratch,
                            a.logits.as<float>() + int64_t{r} * a.problem.vocab, a.params[i]);
    reference::for_each(stream, slices, [&](int64_t slice) { row.look(static_cast<int>(slice)); });
    if (!row.settle(a.results[i])) continue;
    reference::for_each(stream, slices, [&](int64_t slice) { row.deal(static_cast<int>(slice)); });
    row.draw(a.results[i]);
  }
}

}  // namespace

extern const Backend<SampleOp> sample_cpu_shared = {
    .name = "cpu_shared",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = supports,
    .tactics = [](const SampleProblem&, const Device& device) -> std::vector<Tactic> {
      return {isa_tactics(device).back()};
    },
    .workspace =
        [](const Tactic&, const SampleProblem& p, int, int members) {
          reference::Carver carver({});
          cpu::SampleScratch::carve(carver, p, cpu::sample_slices(p, members));
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

// sample, cpu: rows are given to threads, each a whole row. For at least as many rows as threads.
#include "ops/cpu/sample_row.h"

namespace mettle {
namespace {

void run(const Tactic& tactic, const SampleArgs& a, Stream& stream) {
  const int members = std::min(reference::members_of(stream), std::max(a.rows, 1));
  // One item per member: each has its own scratch.
  reference::for_each(stream, members, [&](int64_t member) {
    reference::Carver carver(a.ws);
    for (int64_t i = 0; i < member; ++i) cpu::SampleScratch::carve(carver, a.problem, 1);
    const cpu::SampleScratch scratch = cpu::SampleScratch::carve(carver, a.problem, 1);
    const Span rows = share_of(a.rows, static_cast<int>(member), members);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const auto i = static_cast<size_t>(r);
      cpu::SampleRowParts row(cpu::kernels_of(tactic.isa), a.problem, scratch,
                              a.logits.as<float>() + r * a.problem.vocab, a.params[i]);
      row.look(0);
      if (!row.settle(a.results[i])) continue;
      row.deal(0);
      row.draw(a.results[i]);
    }
  });
}

}  // namespace

extern const Backend<SampleOp> sample_cpu = {
    .name = "cpu",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = [](const SampleProblem&, const Device& device) { return cpu::cpu_supports(device, {}); },
    .tactics = [](const SampleProblem&, const Device& device) { return isa_tactics(device); },
    .workspace =
        [](const Tactic&, const SampleProblem& p, int, int members) {
          reference::Carver carver({});
          for (int i = 0; i < members; ++i) cpu::SampleScratch::carve(carver, p, 1);
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

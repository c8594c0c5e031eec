#include <fmt/format.h>

#include "kernels_bench.h"
#include "kernels_inputs.h"
#include "probe.h"

namespace mettle::bench {

// Rows given to threads against a row shared by them, drawn with top-p, drawn with top-k and the best token.
void sample_methods(const Options& o, Report& out) {
  out.line(fmt::format("sample, {} threads (us per call)", o.threads));
  out.line(fmt::format("{:>7} {:>5} {:8} {:>10} {:>10}   {:10} {:>7}", "vocab", "rows", "draws", "cpu", "cpu_shared",
                       "faster", "by"));
  Probe probe(o.threads);
  Stream stream{&probe.team()};
  const SampleRow kinds[] = {{.temperature = 0.7f, .top_p = 0.95f}, {.temperature = 0.7f, .top_k = 20}, {}};
  for (const int vocab : {6144, 248320})
    for (const int rows : {1, 2, 4, 16}) {
      const SampleProblem p{vocab, vocab};
      std::vector<float> logits(static_cast<size_t>(rows * vocab));
      std::normal_distribution<float> normal(0, 3);
      for (float& l : logits) l = normal(random());
      for (const SampleRow& kind : kinds) {
        std::vector<double> times[2];
        std::vector<SampleResult> results(static_cast<size_t>(rows));
        for (int round = 0; round < o.rounds; ++round)
          for (int m = 0; m < 2; ++m) {
            const Backend<SampleOp>& b = backend<SampleOp>(m == 0 ? "cpu" : "cpu_shared");
            const Tactic tactic = b.tactics(p, this_cpu()).back();
            Buffer ws(b.workspace(tactic, p, rows, o.threads));
            for (int i = 0; i < 6; ++i) {
              std::vector<SampleRow> params(results.size(), kind);
              for (SampleRow& r : params) r.random = std::uniform_real_distribution<>()(random());
              const double start = seconds(o.threads);
              run_op<SampleOp>(
                  {&b, tactic},
                  {p, rows, {logits.data(), DType::kF32, {rows, vocab}}, params, results, {ws.data(), ws.size()}},
                  stream);
              if (i > 0) times[m].push_back(seconds(o.threads) - start);  // the first finds its scratch in no cache
            }
          }
        const double one = best_tenth(times[0]), shared = best_tenth(times[1]);
        const std::string_view draws = kind.temperature == 0 ? "best" : kind.top_k > 0 ? "top_k 20" : "top_p .95";
        out.line(fmt::format("{:7} {:5} {:9} {:9.1f} {:10.1f}   {:10} {:5.0f} %", vocab, rows, draws, one * 1e6,
                             shared * 1e6, one < shared ? "cpu" : "cpu_shared",
                             100 * (std::max(one, shared) / std::min(one, shared) - 1)));
        out.record(fmt::format(
            R"({{"section":"sample","vocab":{},"rows":{},"draws":"{}","threads":{},"cpu_us":{:.1f},"shared_us":{:.1f},"samples":{}}})",
            vocab, rows, draws, o.threads, one * 1e6, shared * 1e6, times[0].size()));
      }
    }
}

}  // namespace mettle::bench

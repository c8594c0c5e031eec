// mettle bench kernels: every proved tactic against the roofline.
#include <fmt/format.h>

#include "base/terminal.h"
#include "cli/bench.h"
#include "cli/model_flags.h"
#include "cli/tune_run.h"

namespace mettle {

int bench_kernels(int argc, char** argv) {
  TuneArguments a;
  CLI::App app(
      "Every proved tactic of a model's ops at each row count: time, noise, bytes and operations per second, and\n"
      "how much that is of what this machine's memory and arithmetic allow. The figures are those that mettle tune\n"
      "measures; here they are not kept and change no choice.",
      "mettle bench kernels");
  app.footer(
      "Examples:\n  mettle bench kernels\n  mettle bench kernels /models/qwen --op moe --budget 60\n"
      "  mettle bench kernels --threads 1 --json");
  add_tune_flags(app, a);
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  const TuneGround ground = tune_ground(a, tune_device(a));
  TuneOptions options;
  options.seconds = a.budget;
  options.only_op = a.op;
  options.cache_folder = "none";
  const TuneFigures figures = measure(ground, options, nullptr);
  fmt::print("{}", a.json ? figures_json(ground, figures) : figures_text(ground, figures, true));
  const bool ok = tell_failures(figures.result);
  if (figures.result.out_of_time)
    say(fmt::format("the {:g} s of --budget are used up after {} of {} buckets\n", a.budget,
                    figures.result.units.size(), figures.result.wanted));
  return ok ? 0 : 1;
}

}  // namespace mettle

// mettle tune: times every proved tactic per problem and row bucket and keeps what serves best.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "base/terminal.h"
#include "cli/model_flags.h"
#include "cli/tune_run.h"
#include "prove/tune_store.h"

namespace mettle {
namespace {

struct Arguments : TuneArguments {
  std::string out, from;
  bool retune = false, child = false;
};

// Before minutes go into measuring.
void check_target(const std::string& path) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (exists(status) && !is_regular_file(status))
    fail(Code::kInvalidRequest, fmt::format("--out: must be a file, {} is none", path));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, ec))
    fail(Code::kDevice, fmt::format("--out: {} is no folder", folder.string()));
}

int run(const Arguments& a) {
  if (!a.out.empty()) check_target(a.out);
  const Device device = tune_device(a);
  const TuningIdentity here = tuning_identity(device, tune_threads(a));
  std::vector<TunedUnit> imported;
  if (!a.from.empty()) imported = read_tuning(a.from, here);
  const TuneGround ground = tune_ground(a, device);
  if (!a.from.empty()) check_tuned(a.from, imported, ground.report);
  TuneOptions options;
  options.seconds = a.budget;
  options.retune = a.retune;
  options.only_op = a.op;
  const TuneFigures figures = measure(ground, options, a.from.empty() ? nullptr : &imported);
  const TuneResult& result = figures.result;
  fmt::print("{}", a.json ? figures_json(ground, figures) : figures_text(ground, figures, false));
  const bool ok = tell_failures(result);
  if (!a.from.empty())
    say(fmt::format("{} of {} buckets taken from {}: each choice was measured here beside the untuned one\n",
                    result.units.size(), imported.size(), a.from));
  if (result.out_of_time)
    say(
        fmt::format("the {:g} s of --budget are used up, {} of {} buckets are done; the next run goes on from those "
                    "that are kept\n",
                    a.budget, result.units.size(), result.wanted));
  if (!a.out.empty()) {
    write_file_atomically(a.out, tuning_text({here, result.units}));
    say(fmt::format("{} of {} buckets written to {}\n", result.units.size(), result.wanted, a.out));
  }
  return ok ? 0 : 1;
}

}  // namespace

int command_tune(int argc, char** argv) {
  Arguments a;
  CLI::App app(
      "Times every proved tactic of a model's ops at each row count, in rounds over all of them, and keeps the\n"
      "fastest; it is measured once more beside the choice that the proofs' own quick times make, and the better\n"
      "one stays. What is found lies beside the verdicts: serving takes it from there, and a run that was ended\n"
      "goes on where it stopped. Only proved tactics are timed, and only they serve.",
      "mettle tune");
  app.footer(
      "Examples:\n  mettle tune\n  mettle tune /models/qwen --budget 600 --out qwen.tuning\n"
      "  mettle tune /models/qwen --from qwen.tuning      on another machine of the same kind\n"
      "  mettle tune --op moe --retune --json");
  add_tune_flags(app, a);
  app.add_option("--out", a.out, "also write what is found to this file, for machines of the same kind")
      ->check(not_empty());
  app.add_option("--from", a.from, "take choices from such a file; each is measured here before it is kept")
      ->check(not_empty());
  app.add_flag("--retune", a.retune, "ignore what earlier runs found");
  app.add_flag("--child", a.child, "measure problems from standard input (what the parent starts)")->group("");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  return a.child ? tune_child() : run(a);
}

}  // namespace mettle

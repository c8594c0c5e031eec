#include "cli/tune_run.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "cli/op_filter.h"
#include "models/registry.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

constexpr double kLeastSeconds = 0.1, kMostSeconds = 86'400;

CLI::Validator seconds() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= kLeastSeconds && value <= kMostSeconds;
        return fits ? std::string()
                    : fmt::format("must be in {}..{} seconds, got {}", kLeastSeconds, kMostSeconds, text);
      },
      "SECONDS");
}

}  // namespace

void add_tune_flags(CLI::App& app, TuneArguments& a) {
  app.add_option("MODEL", a.model, "folder or name of a model; the embedded one when left out")->check(not_empty());
  app.add_option("--op", a.op, "only this op")
      ->check(CLI::IsMember({"embed", "join", "linear", "moe", "attention", "gdn", "sample"}));
  app.add_option("--budget", a.budget, "seconds for measuring; proofs are not counted")
      ->check(seconds())
      ->capture_default_str();
  app.add_option("--threads", a.threads, "threads that serving will use; 0: all usable cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--device", a.device, "cpu, cuda, cuda:N, or auto: a GPU when there is one")->capture_default_str();
  app.add_option("--load-format", a.load_format, "auto: formats from the checkpoint; dummy: from config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  add_format_flags(app, a.formats);
  app.add_flag("--json", a.json, "JSON on standard output");
}

Device tune_device(const TuneArguments& a) { return find_device(a.device); }

int tune_threads(const TuneArguments& a) { return a.threads > 0 ? a.threads : usable_cores(); }

TuneGround tune_ground(const TuneArguments& a, const Device& device) {
  const ModelFolder folder = open_model_folder(find_model(a.model));
  const std::unique_ptr<WeightSource> source =
      a.load_format == "dummy" ? dummy_weights(folder.config, 1) : open_weights(folder.path, folder.config);
  TuneGround ground{.model = folder.name,
                    .problems = problems_of(folder, *source, a.formats.options()),
                    .device = device,
                    .threads = tune_threads(a)};
  check_filter(ground.problems, device, a.op, "");
  ProveOptions options{.device = device, .threads = ground.threads, .tuned = false, .only_op = a.op};
  {
    std::unique_ptr<Progress> bar;
    options.on_progress = [&bar](size_t done, size_t total, const ProofEntry& current) {
      if (bar == nullptr) bar = std::make_unique<Progress>("proving", total);
      bar->set(done, fmt::format("{} {} {}", current.op, current.backend, current.tactic));
    };
    ground.report = prove(ground.problems, options);
  }
  warn_of_failures(ground.report);
  warn_of_times(ground.report);
  ground.ceiling = probe_ceiling(device, ground.threads);
  if (ground.ceiling.crowded())
    log::warn(
        "tune: {} threads do not have as many cores to themselves: to begin and end together takes them {:.0f} us; "
        "times taken now say little",
        ground.threads, ground.ceiling.fork_us);
  return ground;
}

TuneFigures measure(const TuneGround& ground, TuneOptions options, const std::vector<TunedUnit>* imported) {
  TuneFigures figures;
  Sensors sensors(ground.device);
  std::unique_ptr<Progress> bar;
  options.device = ground.device;
  options.threads = ground.threads;
  options.on_work = [&sensors] { sensors.sample(); };
  options.on_progress = [&bar](size_t done, size_t total, const std::string& what) {
    if (bar == nullptr) bar = std::make_unique<Progress>("tuning", total);
    bar->set(done, what);
  };
  const auto begin = std::chrono::steady_clock::now();
  figures.result = tune(ground.problems, ground.report, options, imported);
  figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  figures.clock = sensors.clock_text();
  figures.power = sensors.power_text();
  return figures;
}

bool tell_failures(const TuneResult& result) {
  for (const std::string& r : result.refused) say(fmt::format("nothing is proved for {}: it cannot be tuned\n", r));
  for (const std::string& d : result.dropped) say(fmt::format("not timed: {}\n", d));
  for (const std::string& t : result.from_cache)
    say(fmt::format(
        "timed from the GPU's caches, since its memory had no room for copies of the weights, and not kept: {}\n", t));
  return result.refused.empty() && result.dropped.empty();
}

}  // namespace mettle

// mettle prove: proves every backend for every op of a model on this machine, prints one line each.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "base/terminal.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "cli/model_flags.h"
#include "cli/op_filter.h"
#include "models/registry.h"
#include "ops/cuda/targets.h"
#include "ops/foreign_names.h"
#include "ops/verdict.h"
#include "prove/prover.h"
#include "prove/report.h"
#include "prove/store.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

struct ProveArguments {
  std::string model, op, backend, json, html, device = "auto", load_format = "auto";
  FormatFlags formats;
  int threads = 0, silence = kSilenceMs / 1000;
  bool reprove = false, untimed = false, child = false, forget = false, all = false;
};

constexpr const char* kOps[] = {"embed", "join", "linear", "moe", "attention", "gdn", "sample"};

// Of all ops.
std::vector<std::string> known_backends() {
  std::vector<std::string> names;
  for (const char* op : kOps)
    for (std::string& name : backend_names(op))
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  return names;
}

void print_failures(const ProofReport& report, bool colour) {
  for (const ProofEntry& e : report.entries) {
    if (e.verdict.ok() || info_of(e.verdict.code).refusal) continue;
    say(fmt::format("\n{} {} {} {}\n  {}\n  {}\n", paint(Colour::kRed, std::string(name_of(e.verdict.code)), colour),
                    e.op, e.backend, e.tactic, e.problem, e.verdict.sentence));
    if (!e.verdict.have.empty()) say(fmt::format("  have {}, need {}\n", e.verdict.have, e.verdict.need));
    if (!e.verdict.remedy.empty()) say(fmt::format("  {}\n", e.verdict.remedy));
  }
}

// Atomically, unless the path is a device or a pipe (/dev/stdout), which a rename would replace.
void write_results(const std::string& path, const std::string& text) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!exists(status) || is_regular_file(status) || is_directory(status)) return write_file_atomically(path, text);
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (!written || !closed) fail(Code::kDevice, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
}

// The second would take the place of the first.
void check_different(const std::string& json, const std::string& html) {
  std::error_code ec;
  if (json.empty() || html.empty()) return;
  const auto status = std::filesystem::status(json, ec);
  if (exists(status) && !is_regular_file(status)) return;
  if (std::filesystem::weakly_canonical(json, ec) == std::filesystem::weakly_canonical(html, ec))
    fail(Code::kInvalidRequest, fmt::format("--html: must be another file than --json, got {} for both", html));
}

// Said before minutes of proofs, not after.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  std::error_code ec;
  const std::filesystem::path folder = std::filesystem::absolute(path, ec).parent_path();
  if (std::filesystem::is_directory(path, ec)) fail(Code::kDevice, fmt::format("{}: cannot write: is a folder", path));
  if (!std::filesystem::is_directory(folder, ec))
    fail(Code::kDevice, fmt::format("{}: cannot write: there is no folder {}", path, folder.string()));
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts)};
}

std::string page_of(const ProofReport& report, const ModelFolder& folder, std::span<const AnyProblem> problems,
                    double seconds, int threads) {
  ReportPage page{.report = report, .choices = serving_choices(report, problems)};
  page.program = cuda_targets().empty() ? "no CUDA code" : fmt::format("CUDA code for {}", cuda_targets());
  page.model = folder.name;
  page.architecture = find_model_entry(folder.config).name;
  page.made = now_text();
  page.seconds = seconds;
  page.threads = threads;
  page.problems.assign(problems.begin(), problems.end());
  page.ceiling = probe_ceiling(report.where, threads);
  return report_html(page);
}

int forget(const ProveArguments& a) {
  const std::string folder = default_cache_folder();
  const auto files =
      a.all ? VerdictStore::forget_all(folder) : VerdictStore(folder, build_id(), find_device(a.device)).forget();
  for (const VerdictStore::Forgotten& f : files)
    fmt::print("forgotten: {}\n  {}, {} bytes\n", f.path,
               f.identity.empty() ? "a damaged file or one of another version"
                                  : fmt::format("{} verdicts of {}", f.verdicts, f.identity),
               f.bytes);
  if (files.empty())
    fmt::print("nothing is kept in {}/verdicts{}\n", folder, a.all ? "" : " for this build and device");
  return 0;
}

int run(const ProveArguments& a) {
  check_writable(a.json);
  check_writable(a.html);
  check_different(a.json, a.html);
  const auto begin = std::chrono::steady_clock::now();
  const ModelFolder folder = open_model_folder(find_model(a.model));
  const Device device = find_device(a.device);
  const std::unique_ptr<WeightSource> source =
      a.load_format == "dummy" ? dummy_weights(folder.config, 1) : open_weights(folder.path, folder.config);
  const std::vector<AnyProblem> problems = problems_of(folder, *source, a.formats.options());
  check_filter(problems, device, a.op, a.backend);
  ProveOptions options;
  options.device = device;
  options.threads = a.threads > 0 ? a.threads : usable_cores();
  options.reprove = a.reprove;
  options.time = !a.untimed;
  options.only_op = a.op;
  options.only_backend = a.backend;
  options.silence_ms = a.silence * 1000;
  ProofReport report;
  {
    std::unique_ptr<Progress> bar;
    options.on_progress = [&bar](size_t done, size_t total, const ProofEntry& current) {
      if (bar == nullptr) bar = std::make_unique<Progress>("proving", total);
      bar->set(done, fmt::format("{} {} {}", current.op, current.backend, current.tactic));
    };
    report = prove(problems, options);
  }
  fmt::print("{}", report_table(report, wants_colour(1)));
  const bool ok = all_proved(report);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  size_t proved = 0;
  for (const ProofEntry& e : report.entries) proved += e.verdict.ok() ? 1 : 0;
  fmt::print("\n{} of {} proved on {} in {:.1f} s{}\n", proved, report.entries.size(), report.device, seconds,
             ok ? "" : "; not every op has a proved backend, or a backend failed");
  print_failures(report, wants_colour(2));
  warn_of_times(report);
  if (!a.json.empty()) write_results(a.json, report_json(report));
  if (!a.html.empty()) write_results(a.html, page_of(report, folder, problems, seconds, options.threads));
  return ok ? 0 : 1;
}

}  // namespace

int command_prove(int argc, char** argv) {
  ProveArguments a;
  CLI::App app(
      "Proves every backend for every op of a model on this machine: each runs in a child process on cases of\n"
      "the model's shapes and is judged against float64 code. Exit code 0 when every op has a proved backend\n"
      "and no backend that supports its problem failed, else 1. Verdicts are kept by build and device.",
      "mettle prove");
  app.footer(
      "Examples:\n  mettle prove\n  mettle prove models/mettle-tiny --op moe --json proof.json\n"
      "  mettle prove --html proofs.html\n  METTLE_CPU_ISA=avx2 mettle prove --reprove\n  mettle prove --forget");
  app.add_option("MODEL", a.model, "folder or name of a model; the embedded one when left out")->check(not_empty());
  app.add_option("--op", a.op, "only this op")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kOps), std::end(kOps))));
  app.add_option("--backend", a.backend, "only this backend")->check(CLI::IsMember(known_backends()));
  app.add_option("--json", a.json, "also write the results to this file")->check(not_empty());
  app.add_option("--html", a.html, "also write a page with verdicts, errors, refusals and times: one file, no network")
      ->check(not_empty());
  app.add_option("--threads", a.threads, "threads that serving will use; part of the timing")
      ->check(CLI::Range(1, 1024));
  app.add_option("--device", a.device, "cpu, cuda, cuda:N, or auto: a GPU when there is one")->capture_default_str();
  app.add_option("--load-format", a.load_format, "auto: formats from the checkpoint; dummy: from config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  add_format_flags(app, a.formats);
  app.add_option("--silence", a.silence,
                 "seconds without a sign after which a proof is taken for hanging (HANG); more under a sanitizer")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  CLI::Option* reprove = app.add_flag("--reprove", a.reprove, "ignore kept verdicts");
  CLI::Option* untimed = app.add_flag("--untimed", a.untimed,
                                      "prove only, take no times: whoever needs them takes them later (under a "
                                      "sanitizer, or while the device is busy)");
  untimed->excludes(app.get_option("--html"));  // the page says what serves, which times decide
  CLI::Option* forget_flag = app.add_flag("--forget", a.forget,
                                          "prove nothing: delete the kept verdicts of this build and device, and say "
                                          "what was deleted");
  for (const char* other : {"MODEL", "--op", "--backend", "--json", "--html", "--threads", "--load-format",
                            "--dense-dtype", "--kv-cache-dtype", "--silence"})
    forget_flag->excludes(app.get_option(other));
  forget_flag->excludes(reprove)->excludes(untimed);
  app.add_flag("--all", a.all, "with --forget: those of all builds and devices")->needs(forget_flag);
  app.add_flag("--child", a.child, "work through problems from standard input (what the parent starts)")->group("");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  if (a.child) return prove_child();
  return a.forget ? forget(a) : run(a);
}

}  // namespace mettle

// mettle prove: proves every backend for every op of a model on this machine, prints one line each.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_map.h"
#include "base/terminal.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "cli/model_flags.h"
#include "models/registry.h"
#include "ops/verdict.h"
#include "prove/prover.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

struct ProveArguments {
  std::string model, op, backend, json, device = "auto", load_format = "auto";
  int threads = 0;
  bool reprove = false, child = false;
};

constexpr const char* kOps[] = {"embed", "join", "linear", "moe", "attention", "gdn", "sample"};

template <class Op>
void add_backends(std::vector<std::string>& names) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (std::find(names.begin(), names.end(), b->name) == names.end()) names.emplace_back(b->name);
}

// Of one op, or of all.
std::vector<std::string> backend_names(const std::string& op = {}) {
  std::vector<std::string> names;
  if (op.empty() || op == "embed") add_backends<EmbedOp>(names);
  if (op.empty() || op == "join") add_backends<JoinOp>(names);
  if (op.empty() || op == "linear") add_backends<LinearOp>(names);
  if (op.empty() || op == "moe") add_backends<MoeOp>(names);
  if (op.empty() || op == "attention") add_backends<AttentionOp>(names);
  if (op.empty() || op == "gdn") add_backends<GdnOp>(names);
  if (op.empty() || op == "sample") add_backends<SampleOp>(names);
  return names;
}

Colour colour_of(const ProofEntry& e) {
  if (e.verdict.ok()) return Colour::kGreen;
  return info_of(e.verdict.code).refusal ? Colour::kYellow : Colour::kRed;
}

std::string table_of(const ProofReport& report, bool colour) {
  Table table({"op", "backend", "tactic", "verdict", "error/bound", "comparisons", "ms"});
  for (const ProofEntry& e : report.entries) {
    const bool judged = e.comparisons > 0;
    table.add({e.op, e.backend, e.tactic.empty() ? "-" : e.tactic, std::string(name_of(e.verdict.code)),
               judged ? fmt::format("{:.2g}/{:g}", e.max_error, e.bound) : "-",
               judged ? fmt::format("{}", e.comparisons) : "-", e.cached ? "cached" : fmt::format("{:.0f}", e.ms)});
  }
  std::string text = table.text({4, 5, 6});
  if (!colour) return text;
  // Paint the verdicts: the lines after the heading stand in the order of the entries.
  std::string painted;
  size_t line = 0, at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string row = text.substr(at, end - at);
    if (line > 0 && line <= report.entries.size()) {
      const ProofEntry& e = report.entries[line - 1];
      const std::string name(name_of(e.verdict.code));
      if (const size_t place = row.find(name); place != std::string::npos)
        row.replace(place, name.size(), paint(colour_of(e), name, true));
    }
    painted += row;
    at = end;
    ++line;
  }
  return painted;
}

std::string json_of(const ProofReport& report) {
  Json results = Json::array();
  for (const ProofEntry& e : report.entries)
    results.push_back({{"op", e.op},
                       {"backend", e.backend},
                       {"tactic", e.tactic},
                       {"problem", e.problem},
                       {"verdict", name_of(e.verdict.code)},
                       {"have", e.verdict.have},
                       {"need", e.verdict.need},
                       {"sentence", e.verdict.sentence},
                       {"remedy", e.verdict.remedy},
                       {"max_error", e.max_error},
                       {"bound", e.bound},
                       {"comparisons", e.comparisons},
                       {"cases", e.cases},
                       {"ms", e.ms}});
  const Json all = {{"device", report.device}, {"build", report.build}, {"results", results}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
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

int run(const ProveArguments& a) {
  const auto begin = std::chrono::steady_clock::now();
  const ModelFolder folder = open_model_folder(find_model(a.model));
  const Device device = find_device(a.device);
  const std::unique_ptr<WeightSource> source =
      a.load_format == "dummy" ? dummy_weights(folder.config, 1) : open_weights(folder.path, folder.config);
  const std::vector<AnyProblem> problems = problems_of(folder, *source, Activation::kBf16);
  if (!a.op.empty() && !a.backend.empty()) {
    const std::vector<std::string> names = backend_names(a.op);
    if (std::find(names.begin(), names.end(), a.backend) == names.end())
      fail(Code::kInvalidRequest, fmt::format("--backend: {} has {}, got {}", a.op, fmt::join(names, ", "), a.backend));
  }
  ProveOptions options;
  options.device = device;
  options.threads = a.threads > 0 ? a.threads : usable_cores();
  options.reprove = a.reprove;
  options.only_op = a.op;
  options.only_backend = a.backend;
  ProofReport report;
  {
    std::unique_ptr<Progress> bar;
    options.on_progress = [&bar](size_t done, size_t total, const ProofEntry& latest) {
      if (bar == nullptr) bar = std::make_unique<Progress>("proving", total);
      bar->set(done, fmt::format("{} {} {}", latest.op, latest.backend, latest.tactic));
    };
    report = prove(problems, options);
  }
  fmt::print("{}", table_of(report, wants_colour(1)));
  const bool ok = all_proved(report);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  size_t proved = 0;
  for (const ProofEntry& e : report.entries) proved += e.verdict.ok() ? 1 : 0;
  fmt::print("\n{} of {} proved on {} in {:.1f} s{}\n", proved, report.entries.size(), report.device, seconds,
             ok ? "" : "; not every op has a proved backend, or a backend failed");
  print_failures(report, wants_colour(2));
  if (!a.json.empty()) write_results(a.json, json_of(report));
  return ok ? 0 : 1;
}

}  // namespace

int command_prove(int argc, char** argv) {
  ProveArguments a;
  CLI::App app(
      "Proves every backend for every op of a model on this machine: each runs in a child process on cases of\n"
      "the model's shapes and is judged against float64 code. Exit code 0 when every op has a proved backend\n"
      "and no backend that supports its problem failed, else 1.",
      "mettle prove");
  app.footer(
      "Examples:\n  mettle prove\n  mettle prove models/mettle-tiny --op moe --json proof.json\n"
      "  METTLE_CPU_ISA=avx2 mettle prove --reprove");
  app.add_option("MODEL", a.model, "folder or name of a model; the embedded one when left out")->check(not_empty());
  app.add_option("--op", a.op, "only this op")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kOps), std::end(kOps))));
  app.add_option("--backend", a.backend, "only this backend")->check(CLI::IsMember(backend_names()));
  app.add_option("--json", a.json, "also write the results to this file")->check(not_empty());
  app.add_option("--threads", a.threads, "threads that serving will use; part of the timing")
      ->check(CLI::Range(1, 1024));
  app.add_option("--device", a.device, "cpu, cuda, cuda:N, or auto: a GPU when there is one")->capture_default_str();
  app.add_option("--load-format", a.load_format, "auto: formats from the checkpoint; dummy: from config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app.add_flag("--reprove", a.reprove, "ignore kept verdicts");
  app.add_flag("--child", a.child, "work through problems from standard input (what the parent starts)")->group("");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  return a.child ? prove_child() : run(a);
}

}  // namespace mettle

// mettle explain: every candidate of every op of a model and what stands between it and use, for this machine or a
// named device, without weights and without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "base/error.h"
#include "base/terminal.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "cli/explanation.h"
#include "cli/model_flags.h"
#include "cli/target.h"
#include "models/planned.h"
#include "models/registry.h"
#include "prove/candidates.h"
#include "prove/store.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string model, device = "auto", load_format = "auto";
  FormatFlags formats;
  int tp_size = 1;
  bool json = false, codes = false;
};

// What our backend of that name meets at this model's problems: its proof or refusal, the first one that is no refusal.
Verdict verdict_of(const Explanation& e, std::string_view op, const std::string& backend) {
  const ProofEntry* found = nullptr;
  for (const ProofEntry& entry : e.entries) {
    if (entry.op != op || entry.backend != backend) continue;
    const bool open = entry.verdict.ok() || entry.verdict.code == VerdictCode::kUnproved;
    if (found == nullptr || open) found = &entry;
    if (open) break;
  }
  if (found != nullptr) return found->verdict;
  // Of a model whose op has no code yet.
  const auto missing =
      std::find_if(e.entries.begin(), e.entries.end(), [&](const ProofEntry& entry) { return entry.op == op; });
  return missing == e.entries.end() ? Verdict{} : missing->verdict;
}

// Ours that this device or this model's shapes rule out, whatever is built: nothing to advise.
std::vector<std::string> ruled_out(const Explanation& e, std::string_view op) {
  std::vector<std::string> names;
  for (const std::string& name : backend_names(op, e.device.kind)) {
    const VerdictCode code = verdict_of(e, op, name).code;
    if (code == VerdictCode::kWrongSm || code == VerdictCode::kSmemTooSmall || code == VerdictCode::kShapeUnsupported ||
        code == VerdictCode::kFormatUnsupported || code == VerdictCode::kSemanticsDiffer)
      names.push_back(name);
  }
  return names;
}

void add_words(Explanation& e) {
  for (const BackendFlag& flag : backend_flags()) {
    const bool used = std::any_of(e.entries.begin(), e.entries.end(), [&](const auto& x) { return x.op == flag.op; });
    if (!used) continue;
    for (const ForeignName& name : foreign_names()) {
      if (name.op != flag.op) continue;
      Naming naming = translate(name, e.device);
      ForeignWord word{&name, flag.name, naming.backend, std::move(naming.verdict)};
      if (word.verdict.ok())
        word.verdict = verdict_of(e, name.op, word.backend);
      else
        word.verdict.remedy = what_instead(name.op, e.device.kind, ruled_out(e, name.op));
      e.words.push_back(std::move(word));
    }
  }
}

// Of backends without code too: what this model's shapes rule out is no advice.
void advise(Explanation& e) {
  for (const ForeignName& name : planned_backends())
    for (ProofEntry& entry : e.entries)
      if (entry.op == name.op && entry.backend == name.word)
        entry.verdict.remedy = what_instead(name.op, e.device.kind, ruled_out(e, name.op));
}

void add_candidates(Explanation& e, std::span<const AnyProblem> problems) {
  const Candidates candidates = Candidates::all();
  std::set<std::string> seen;
  for (const AnyProblem& problem : problems) {
    if (!seen.insert(text_of(problem)).second) continue;
    for (ProofEntry& entry : list_candidates(problem, e.device, candidates)) e.entries.push_back(std::move(entry));
    for (const ForeignName& name : planned_backends()) {  // of a GPU, all of them
      if (e.device.kind != DeviceKind::kCuda || name.op != op_name_of(problem)) continue;
      ProofEntry entry{.op = std::string(name.op), .backend = std::string(name.word), .problem = text_of(problem)};
      entry.verdict = translate(name, e.device).verdict;
      e.entries.push_back(std::move(entry));
    }
  }
  advise(e);
}

// Ops that exist ask their backends; of the others the plan is told.
void add_planned(Explanation& e, const PlannedModel& model) {
  e.architecture = fmt::format("{}, planned", model.name);
  e.formats = "config.json";
  add_candidates(e, model.problems);
  for (const MissingOp& m : model.missing) {
    ProofEntry entry{.op = m.op, .backend = "reference", .problem = m.problem};
    entry.verdict =
        refuse(VerdictCode::kNotBuilt, "no code", m.need, "this op is not written yet", "planned: " + m.plan);
    e.entries.push_back(std::move(entry));
  }
}

Explanation explain(const Arguments& a) {
  Explanation e;
  e.device = device_of_flag(a.device, e.named);
  const ModelFolder folder = open_model_folder(find_model(a.model));
  e.model = folder.name;
  ModelOptions options = a.formats.options();
  options.ranks = a.tp_size;
  if (const std::optional<PlannedModel> planned = planned_model(folder.config, options)) {
    add_planned(e, *planned);
    add_words(e);
    return e;
  }
  const bool dummy = a.load_format == "dummy" || !has_weights(folder.path);
  const std::unique_ptr<WeightSource> source =
      dummy ? dummy_weights(folder.config, 1) : open_weights(folder.path, folder.config);
  e.architecture = find_model_entry(folder.config).name;
  e.formats = dummy ? "config.json" : "the checkpoint";
  add_candidates(e, problems_of(folder, *source, options));
  if (!e.named) {  // what was proved on this machine before
    const VerdictStore store(default_cache_folder(), build_id(), e.device);
    bool timed = false;
    for (ProofEntry& entry : e.entries)
      if (entry.verdict.code == VerdictCode::kUnproved) store.find(entry, usable_cores(), &timed);
  }
  add_words(e);
  return e;
}

// The verdict table: the same source as what serving says and what docs/proofs.md lists.
std::string codes(bool json) {
  if (json) {
    Json all = Json::array();
    for (const VerdictInfo& row : verdict_table())
      all.push_back({{"code", row.name}, {"refusal", row.refusal}, {"meaning", row.meaning}, {"remedy", row.remedy}});
    return all.dump(2) + "\n";
  }
  Table table({"code", "kind", "meaning", "remedy"});
  for (const VerdictInfo& row : verdict_table())
    table.add({std::string(row.name),
               row.code == VerdictCode::kOk ? ""
               : row.refusal                ? "refusal"
                                            : "failure",
               std::string(row.meaning), std::string(row.remedy)});
  return table.text();
}

}  // namespace

int command_explain(int argc, char** argv) {
  Arguments a;
  CLI::App app(
      "Every candidate of every op of a model and what stands between it and use, for this machine or a named\n"
      "device, without weights and without a GPU: the answers are those that serving asks for. Also what the\n"
      "words of other engines mean on that device.",
      "mettle explain");
  app.footer(
      "Examples:\n  mettle explain\n  mettle explain config.json --device sm120\n"
      "  mettle explain /models/qwen --device sm90 --json\n  mettle explain --codes");
  app.add_option("MODEL", a.model, "folder, config.json or name of a model; the embedded one when left out")
      ->check(not_empty());
  app.add_option("--device", a.device,
                 "sm80 sm86 sm89 sm90 sm100 sm103 sm120 sm121: as if it were here; cpu, cuda, cuda:N: this machine's; "
                 "auto: a GPU when there is one")
      ->capture_default_str();
  app.add_option("--tp-size,--tensor-parallel-size,--tp", a.tp_size, "ranks the model is cut for")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--load-format", a.load_format,
                 "auto: formats from the checkpoint where there is one; dummy: from config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  add_format_flags(app, a.formats);
  app.add_flag("--json", a.json, "JSON on standard output");
  app.add_flag("--codes", a.codes, "the table of verdicts: code, meaning, remedy");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  if (a.codes) {
    fmt::print("{}", codes(a.json));
    return 0;
  }
  const Explanation e = explain(a);
  fmt::print("{}", a.json ? explanation_json(e) : explanation_text(e));
  return 0;
}

}  // namespace mettle

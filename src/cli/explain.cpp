// mettle explain: every candidate of every op of a model and what stands between it and use, for this machine or a
// named device, without weights and without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/terminal.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "cli/model_flags.h"
#include "models/registry.h"
#include "ops/cuda/targets.h"
#include "ops/foreign_names.h"
#include "prove/candidates.h"
#include "prove/store.h"
#include "tensor/device_table.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string model, device = "auto", load_format = "auto";
  int tp_size = 1;
  bool json = false, codes = false;
};

struct Word {  // of another engine
  const ForeignName* name = nullptr;
  std::string_view flag;
  std::string backend;  // ours, when it is not refused
  Verdict verdict;
};

struct Explanation {
  std::string model, architecture, formats;
  Device device;
  bool named = false;  // taken from the table, not found here
  std::vector<ProofEntry> entries;
  std::vector<Word> words;
};

std::string target_text() {
  return cuda_targets().empty() ? "no CUDA code" : fmt::format("CUDA code for {}", cuda_targets());
}

Device device_of(const std::string& name, bool& named) {
  const std::optional<Device> known = device_of_table(name);
  named = known.has_value();
  if (named) return *known;
  if (name == "auto" || name == "cpu" || name.starts_with("cuda")) return find_device(name);
  std::string list;
  for (const DeviceFacts& f : device_table()) list += fmt::format("{}, ", f.name);
  fail(Code::kInvalidRequest, fmt::format("--device: must be {}cpu, cuda, cuda:N or auto, got \"{}\"", list, name));
}

// Whether the folder has weights whose formats can be read; else config.json tells them.
bool has_weights(const std::string& folder) {
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec))
    if (entry.path().extension() == ".safetensors") return true;
  return false;
}

// What our backend of that name meets at this model's problems: its proof or refusal, the first one that is no refusal.
Verdict verdict_of(const Explanation& e, std::string_view op, const std::string& backend) {
  const ProofEntry* found = nullptr;
  for (const ProofEntry& entry : e.entries) {
    if (entry.op != op || entry.backend != backend) continue;
    const bool open = entry.verdict.ok() || entry.verdict.code == VerdictCode::kUnproved;
    if (found == nullptr || open) found = &entry;
    if (open) break;
  }
  return found == nullptr ? Verdict{} : found->verdict;
}

void add_words(Explanation& e) {
  for (const BackendFlag& flag : backend_flags()) {
    const bool used = std::any_of(e.entries.begin(), e.entries.end(), [&](const auto& x) { return x.op == flag.op; });
    if (!used) continue;
    for (const ForeignName& name : foreign_names()) {
      if (name.op != flag.op) continue;
      Naming naming = translate(name, e.device);
      Word word{&name, flag.name, naming.backend, std::move(naming.verdict)};
      if (word.verdict.ok()) word.verdict = verdict_of(e, name.op, word.backend);
      e.words.push_back(std::move(word));
    }
  }
}

Explanation explain(const Arguments& a) {
  Explanation e;
  e.device = device_of(a.device, e.named);
  const ModelFolder folder = open_model_folder(find_model(a.model));
  const bool dummy = a.load_format == "dummy" || !has_weights(folder.path);
  const std::unique_ptr<WeightSource> source =
      dummy ? dummy_weights(folder.config, 1) : open_weights(folder.path, folder.config);
  e.model = folder.name;
  e.architecture = find_model_entry(folder.config).name;
  e.formats = dummy ? "config.json" : "the checkpoint";
  const Candidates candidates = Candidates::all();
  std::set<std::string> seen;
  for (const AnyProblem& problem : problems_of(folder, *source, Activation::kBf16, a.tp_size)) {
    if (!seen.insert(text_of(problem)).second) continue;
    for (ProofEntry& entry : list_candidates(problem, e.device, candidates)) e.entries.push_back(std::move(entry));
  }
  if (!e.named) {  // what was proved on this machine before
    const VerdictStore store(default_cache_folder(), build_id(), e.device);
    bool timed = false;
    for (ProofEntry& entry : e.entries)
      if (entry.verdict.code == VerdictCode::kUnproved) store.find(entry, usable_cores(), &timed);
  }
  add_words(e);
  return e;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string why(const Verdict& v) {
  if (v.ok() || (v.have.empty() && v.need.empty())) return v.sentence;
  return fmt::format("have {}, need {}", v.have, v.need);
}

std::string verdicts_text(const Explanation& e) {
  std::string text, problem;
  std::unique_ptr<Table> table;
  const auto flush = [&] {
    if (table != nullptr) text += table->text() + "\n";
  };
  for (size_t i = 0; i < e.entries.size();) {
    const ProofEntry& first = e.entries[i];
    std::string tactics;  // neighbours with one verdict share a line
    size_t end = i;
    for (; end < e.entries.size(); ++end) {
      const ProofEntry& x = e.entries[end];
      if (x.problem != first.problem || x.backend != first.backend || x.verdict.code != first.verdict.code ||
          why(x.verdict) != why(first.verdict))
        break;
      tactics += fmt::format("{}{}", tactics.empty() ? "" : " ", x.tactic);
    }
    if (first.problem != problem) {
      flush();
      problem = first.problem;
      text += problem + "\n";
      table = std::make_unique<Table>(std::vector<std::string>{"  backend", "tactics", "verdict", "why"});
    }
    table->add({"  " + first.backend, tactics.empty() ? "-" : tactics, std::string(name_of(first.verdict.code)),
                why(first.verdict)});
    i = end;
  }
  flush();
  return text;
}

// The roundings that a backend declares, of those that its op knows.
std::string declared(const ProofEntry& entry) {
  static const std::map<std::string, std::vector<std::string_view>> kOfOp = {
      {"moe", {"gate_up=", "h="}}, {"attention", {"q=", "p=", "core_out="}}, {"gdn", {"gdn_inner=", "core_out="}}};
  std::string text;
  const auto fields = kOfOp.find(entry.op);
  for (const std::string& word : split(entry.numerics)) {
    const bool own = fields != kOfOp.end() && std::any_of(fields->second.begin(), fields->second.end(),
                                                          [&](std::string_view f) { return word.starts_with(f); });
    if (own || word.find('=') == std::string::npos) text += fmt::format("{}{}", text.empty() ? "" : " ", word);
  }
  return text;
}

std::string numerics_text(const Explanation& e) {
  Table table({"  op", "backend", "rounds"});
  std::set<std::string> seen;
  for (const ProofEntry& x : e.entries)
    if (const std::string text = declared(x); !text.empty() && seen.insert(x.op + " " + x.backend).second)
      table.add({"  " + x.op, x.backend, text});
  return seen.empty()
             ? ""
             : fmt::format("declared roundings, part of what is proved; the rest is float32\n{}\n", table.text());
}

std::string why(const Word& w) {
  const Verdict& v = w.verdict;
  const std::string method(w.name->method);
  if (!w.backend.empty())  // ours of the same method; what that one meets
    return v.code == VerdictCode::kSmemTooSmall || v.code == VerdictCode::kShapeUnsupported ||
                   v.code == VerdictCode::kFormatUnsupported
               ? fmt::format("{}: {}", method, why(v))
               : method;
  const std::string reason = v.code == VerdictCode::kNotBuilt ? "not in mettle" : fmt::format("need {}", v.need);
  return fmt::format("{}: {}; {}", method, reason, v.remedy);
}

std::string words_text(const Explanation& e) {
  if (e.words.empty()) return "";
  Table table({"flag", "word", "is here", "verdict", "why"});
  std::string_view flag;
  for (const Word& w : e.words) {
    table.add({w.flag == flag ? "" : std::string(w.flag), std::string(w.name->word),
               w.backend.empty() ? "-" : w.backend, std::string(name_of(w.verdict.code)), why(w)});
    flag = w.flag;
  }
  return fmt::format("words of other engines on {}\n{}\n", e.device.name, table.text());
}

// Each remedy once, and the problems that nothing can serve.
std::string summary(const Explanation& e) {
  std::map<std::string, bool> served;
  std::vector<std::string> remedies;
  for (const ProofEntry& x : e.entries) {
    const bool open = x.verdict.ok() || x.verdict.code == VerdictCode::kUnproved;
    served[x.op] = served[x.op] || open;
    const std::string line = fmt::format("  {}: {}", name_of(x.verdict.code), x.verdict.remedy);
    if (!x.verdict.remedy.empty() && std::find(remedies.begin(), remedies.end(), line) == remedies.end())
      remedies.push_back(line);
  }
  std::string missing;
  for (const auto& [op, any] : served)
    if (!any) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", op);
  return fmt::format("{}{}{}\n", remedies.empty() ? "" : fmt::format("what to do\n{}\n\n", fmt::join(remedies, "\n")),
                     missing.empty() ? "every op has a candidate" : "no candidate for ", missing);
}

std::string device_text(const Device& d) {
  if (d.kind == DeviceKind::kCpu) {
    std::string isas;
    for (const Isa isa : d.isas) isas += fmt::format(" {}", name_of(isa));
    return fmt::format("{}: {},{}", d.name, d.model, isas);
  }
  return fmt::format("{}: {}, {} multiprocessors, {} bytes of shared memory a block, {:.0f} GB", d.name, d.model,
                     d.multiprocessors, d.shared_per_block, static_cast<double>(d.memory) / 1e9);
}

std::string text_of_all(const Explanation& e) {
  std::string text = fmt::format("model    {} ({}), formats from {}\n", e.model, e.architecture, e.formats);
  text += fmt::format("device   {}{}\n", device_text(e.device), e.named ? " (a typical card, from the table)" : "");
  text += fmt::format("program  {}\n\n", target_text());
  return text + verdicts_text(e) + numerics_text(e) + words_text(e) + summary(e);
}

Json verdict_json(const Verdict& v) {
  return {
      {"verdict", name_of(v.code)}, {"have", v.have}, {"need", v.need}, {"sentence", v.sentence}, {"remedy", v.remedy}};
}

std::string json_of(const Explanation& e) {
  Json isas = Json::array();
  for (const Isa isa : e.device.isas) isas.push_back(name_of(isa));
  Json device = {{"name", e.device.name}, {"model", e.device.model}, {"named", e.named}};
  if (e.device.kind == DeviceKind::kCpu)
    device["instruction_sets"] = isas;
  else
    device.update({{"compute_capability", fmt::format("{}.{}", e.device.sm / 10, e.device.sm % 10)},
                   {"multiprocessors", e.device.multiprocessors},
                   {"shared_per_block", e.device.shared_per_block},
                   {"memory", e.device.memory}});
  Json candidates = Json::array(), words = Json::array();
  for (const ProofEntry& x : e.entries) {
    Json row = {
        {"op", x.op}, {"problem", x.problem}, {"backend", x.backend}, {"tactic", x.tactic}, {"numerics", x.numerics}};
    row.update(verdict_json(x.verdict));
    candidates.push_back(std::move(row));
  }
  for (const Word& w : e.words) {
    Json row = {{"flag", w.flag},
                {"word", w.name->word},
                {"engines", w.name->engines},
                {"method", w.name->method},
                {"backend", w.backend}};
    row.update(verdict_json(w.verdict));
    words.push_back(std::move(row));
  }
  const Json all = {{"model", e.model},
                    {"architecture", e.architecture},
                    {"formats", e.formats},
                    {"device", device},
                    {"cuda_targets", cuda_targets()},
                    {"build", build_id()},
                    {"candidates", candidates},
                    {"words", words}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
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
  app.add_flag("--json", a.json, "JSON on standard output");
  app.add_flag("--codes", a.codes, "the table of verdicts: code, meaning, remedy");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  if (a.codes) {
    fmt::print("{}", codes(a.json));
    return 0;
  }
  const Explanation e = explain(a);
  fmt::print("{}", a.json ? json_of(e) : text_of_all(e));
  return 0;
}

}  // namespace mettle

#include "cli/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/terminal.h"
#include "ops/cuda/targets.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

std::string target_text() {
  return cuda_targets().empty() ? "no CUDA code" : fmt::format("CUDA code for {}", cuda_targets());
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

std::string why(const ForeignWord& w) {
  const Verdict& v = w.verdict;
  const std::string method(w.name->method);
  if (!w.backend.empty())  // ours of the same method; what that one meets
    return v.code == VerdictCode::kSmemTooSmall || v.code == VerdictCode::kShapeUnsupported ||
                   v.code == VerdictCode::kFormatUnsupported
               ? fmt::format("{}: {}", method, why(v))
               : method;
  return fmt::format("{}: {}", method, v.code == VerdictCode::kNotBuilt ? "not in mettle" : why(v));
}

std::string words_text(const Explanation& e) {
  if (e.words.empty()) return "";
  Table table({"flag", "word", "is here", "verdict", "why"}), instead({"flag", "verdict", "what to do"});
  std::set<std::vector<std::string>> told;  // a remedy stands once for each verdict of a flag
  std::string_view flag, told_flag;
  for (const ForeignWord& w : e.words) {
    table.add({w.flag == flag ? "" : std::string(w.flag), std::string(w.name->word),
               w.backend.empty() ? "-" : w.backend, std::string(name_of(w.verdict.code)), why(w)});
    flag = w.flag;
    std::vector<std::string> row{std::string(w.flag), std::string(name_of(w.verdict.code)), w.verdict.remedy};
    if (!w.backend.empty() || w.verdict.remedy.empty() || !told.insert(row).second) continue;
    if (w.flag == told_flag) row.front().clear();
    told_flag = w.flag;
    instead.add(std::move(row));
  }
  return fmt::format("words of other engines on {}\n{}\n{}", e.device.name, table.text(),
                     told.empty() ? "" : instead.text() + "\n");
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

}  // namespace

std::string explanation_text(const Explanation& e) {
  std::string text = fmt::format("model    {} ({}), formats from {}\n", e.model, e.architecture, e.formats);
  text += fmt::format("device   {}{}\n", device_text(e.device), e.named ? " (a typical card, from the table)" : "");
  text += fmt::format("program  {}\n\n", target_text());
  return text + verdicts_text(e) + numerics_text(e) + words_text(e) + summary(e);
}

namespace {

Json verdict_json(const Verdict& v) {
  return {
      {"verdict", name_of(v.code)}, {"have", v.have}, {"need", v.need}, {"sentence", v.sentence}, {"remedy", v.remedy}};
}

}  // namespace

std::string explanation_json(const Explanation& e) {
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
  for (const ForeignWord& w : e.words) {
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

}  // namespace mettle

#include "sweep/skips.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/subprocess.h"

namespace mettle::sweep {
namespace {

// What other programs call the same flag.
std::vector<std::string> names_of_flag(const std::string& flag) {
  if (flag == "--moe-runner-backend") return {flag, "--moe-backend"};
  return {flag};
}

std::string plain(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::tolower(c)); });
  return word;
}

}  // namespace

std::vector<RefusedWord> refused_words(const std::string& explain_json) {
  std::vector<RefusedWord> out;
  const nlohmann::json json = nlohmann::json::parse(explain_json, nullptr, false);
  if (!json.is_object() || !json.contains("words") || !json["words"].is_array()) return out;
  for (const auto& row : json["words"]) {
    if (!row.is_object()) continue;
    const std::string verdict = row.value("verdict", "");
    if (verdict != "WRONG_SM" && verdict != "ISA_MISSING" && verdict != "SMEM_TOO_SMALL") continue;
    out.push_back(
        {row.value("flag", ""), row.value("word", ""), fmt::format("{} {}", verdict, row.value("sentence", ""))});
  }
  return out;
}

std::vector<RefusedWord> ask_explain(const std::string& program, const std::string& device, const std::string& model) {
  SubprocessOptions options;
  options.argv = {program, "explain", "--json", "--device", device};
  std::error_code ec;
  if (std::filesystem::exists(std::filesystem::path(model) / "config.json", ec)) options.argv.push_back(model);
  options.deadline = std::chrono::seconds(120);
  SubprocessResult result = run_subprocess(options);
  const bool answered = result.end == SubprocessEnd::kExited && result.exit_code == 0;
  if (!answered && options.argv.size() > 5) {  // a model that mettle does not know: the words mean the same for ours
    options.argv.resize(5);
    result = run_subprocess(options);
  }
  if (result.end != SubprocessEnd::kExited || result.exit_code != 0)
    fail(Code::kDevice, fmt::format("mettle explain --device {}: must answer, said: {}", device, result.err));
  return refused_words(result.out);
}

std::optional<Skip> find_skip(const Plan& plan, const Cell& cell, const std::vector<RefusedWord>& refused,
                              const std::vector<Done>& done) {
  for (const RefusedWord& word : refused)
    for (const std::string& flag : names_of_flag(word.flag))
      if (plain(value_of(cell, flag)) == word.word)
        return Skip{word.why.substr(0, word.why.find(' ')),
                    fmt::format("{} {} cannot run on {}: {}", flag, word.word, plan.device, word.why)};
  for (const SkipRule& rule : plan.skips) {
    const std::string value = value_of(cell, rule.axis);
    if (value.empty()) continue;
    for (const Done& d : done) {
      if (d.cell == &cell || d.result->outcome != Outcome::kFailed || value_of(*d.cell, rule.axis) != value) continue;
      if (std::find(rule.causes.begin(), rule.causes.end(), d.result->cause) == rule.causes.end()) continue;
      return Skip{d.result->cause,
                  fmt::format("{} {} ended with {} in cell \"{}\"", rule.axis, value, d.result->cause, d.cell->name)};
    }
  }
  return std::nullopt;
}

}  // namespace mettle::sweep

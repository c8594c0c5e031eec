#include "diagnose/signatures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace mettle::diagnose {
namespace {

using Json = nlohmann::json;

template <class T>
T pick(const std::string& word, std::initializer_list<std::pair<const char*, T>> list, const std::string& where) {
  for (const auto& [name, value] : list)
    if (word == name) return value;
  fail(Code::kInternal, fmt::format("signatures: {} holds an unknown word: {}", where, word));
}

Kind kind_of(const std::string& word, const std::string& where) {
  return pick<Kind>(word,
                    {{"cause", Kind::kCause},
                     {"symptom", Kind::kSymptom},
                     {"advice", Kind::kAdvice},
                     {"request", Kind::kRequest},
                     {"plain", Kind::kPlain},
                     {"wrapper", Kind::kWrapper},
                     {"noise", Kind::kNoise}},
                    where);
}

Confidence confidence_of(const std::string& word, const std::string& where) {
  return pick<Confidence>(
      word, {{"low", Confidence::kLow}, {"medium", Confidence::kMedium}, {"high", Confidence::kHigh}}, where);
}

// "silence 300": the word and its number.
void set_need(Signature& s, std::string word) {
  const size_t digits = word.find_last_not_of("0123456789") + 1;
  if (digits < word.size()) {
    s.amount = std::stoi(word.substr(digits));
    word.resize(digits - 1);
  }
  s.need = pick<Need>(word,
                      {{"", Need::kNone},
                       {"device", Need::kDevice},
                       {"none survived", Need::kNoneSurvived},
                       {"silence", Need::kSilence},
                       {"fragmented", Need::kFragmented},
                       {"twice", Need::kTwice},
                       {"long context", Need::kLongContext},
                       {"repeated", Need::kRepeated},
                       {"answer", Need::kAnswer},
                       {"slow", Need::kSlow},
                       {"client complaint", Need::kClientComplaint},
                       {"no zero count", Need::kNoZeroCount},
                       {"engine died", Need::kEngineDied},
                       {"gate or toolkit", Need::kGateOrToolkit},
                       {"error line", Need::kErrorLine}},
                      s.id);
}

Marker::What marker_of(const std::string& word) {
  using What = Marker::What;
  return pick<What>(word,
                    {{"phase", What::kPhase},
                     {"ready", What::kReady},
                     {"success", What::kSuccess},
                     {"speed", What::kSpeed},
                     {"stopping", What::kStopping},
                     {"start", What::kStart},
                     {"tuned", What::kTuned},
                     {"engine", What::kEngine},
                     {"device", What::kDevice},
                     {"toolkit", What::kToolkit},
                     {"frame", What::kFrame},
                     {"fact", What::kFact}},
                    "markers");
}

std::string joined(const Json& lines) {
  std::string text;
  for (const Json& line : lines) text += line.get<std::string>() + "\n";
  return text;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

Signature signature_of(const Json& j, bool generic) {
  Signature s;
  s.id = j.at("id");
  s.phrase = j.at("phrase");
  s.engine = j.at("engine");
  s.cause = j.at("class");
  s.tell = j.at("tell");
  s.remedy = j.value("remedy", "");
  s.pattern = Pattern(s.phrase);
  s.kind = kind_of(j.at("kind"), s.id);
  s.confidence = confidence_of(j.at("confidence"), s.id);
  s.generic = generic;
  set_need(s, j.value("needs", ""));
  if (j.contains("needles")) {
    for (const Json& needle : j.at("needles")) s.needles.push_back(lower(needle));
  } else {
    s.needles = {Pattern::required_literal(s.phrase)};
  }
  for (const Json& example : j.at("examples"))
    s.examples.push_back(
        {example.at("cause").is_null() ? "" : example.at("cause").get<std::string>(), joined(example.at("log"))});
  return s;
}

}  // namespace

Table read_table(std::string_view json) {
  try {
    const Json all = Json::parse(json);
    Table t;
    for (const auto& [name, j] : all.at("classes").items()) {
      ClassInfo info;
      info.meaning = j.at("meaning");
      info.phases = j.value("phases", info.phases);
      info.flags = j.value("flags", info.flags);
      info.missing = j.value("missing", info.missing);
      info.disputed = j.value("disputed", false);
      t.classes.emplace(name, std::move(info));
    }
    for (const Json& j : all.at("signatures")) t.signatures.push_back(signature_of(j, false));
    for (const Json& j : all.at("rules")) t.signatures.push_back(signature_of(j, true));
    for (const Json& j : all.at("markers"))
      for (const Json& text : j.at("text")) {
        Marker m{marker_of(j.at("what")), j.at("value"), lower(text), {}, j.contains("phrase")};
        if (m.has_pattern) m.pattern = Pattern(j.at("phrase"));
        t.markers.push_back(std::move(m));
      }
    for (const Json& j : all.at("misleading"))
      t.misleading.push_back({lower(j.at("text")), Pattern(j.at("phrase")), j.at("why")});
    for (const Json& j : all.at("compounds"))
      t.compounds.push_back(
          {j.at("name"), j.at("cause"), j.at("rank"), j.value("confidence", ""), joined(j.at("log")), j.at("line")});
    return t;
  } catch (const Json::exception& e) {
    fail(Code::kInternal, fmt::format("signatures: {}", e.what()));
  }
}

const Table& table() {
  static const Table instance = read_table(signatures_json());
  return instance;
}

std::vector<std::string> lint(const Table& t) {
  static const std::set<std::string> kServers{"any", "sglang", "vllm", "trtllm", "llama-server", "mettle"};
  static const std::set<std::string> kPhases{"import",  "load",          "shuffle", "tune",
                                             "capture", "first request", "serving"};
  std::vector<std::string> wrong;
  std::set<std::string> ids;
  for (const Signature& s : t.signatures) {
    if (!ids.insert(s.id).second) wrong.push_back(fmt::format("{}: the id is taken twice", s.id));
    if (!t.classes.contains(s.cause)) wrong.push_back(fmt::format("{}: unknown class {}", s.id, s.cause));
    if (s.tell.empty()) wrong.push_back(fmt::format("{}: tells nothing", s.id));
    if (s.needles.empty()) wrong.push_back(fmt::format("{}: has no needle", s.id));
    for (const std::string& needle : s.needles)
      if (needle.size() < 3) wrong.push_back(fmt::format("{}: needle \"{}\" must have 3 bytes or more", s.id, needle));
    if (s.examples.size() < 3)
      wrong.push_back(fmt::format("{}: must have one example and two near misses, has {}", s.id, s.examples.size()));
    // What the pattern matches in its own examples must hold a needle, or the scanner would pass over it.
    bool matched = false;
    for (const Example& example : s.examples) {
      size_t at = 0;
      while (at < example.log.size()) {
        const size_t end = example.log.find('\n', at);
        const std::string line = example.log.substr(at, end - at);
        at = end + 1;
        if (!s.pattern.search(line)) continue;
        matched = true;
        const std::string low = lower(line);
        if (std::none_of(s.needles.begin(), s.needles.end(),
                         [&](const std::string& n) { return low.find(n) != std::string::npos; }))
          wrong.push_back(fmt::format("{}: no needle in a line it matches: {}", s.id, line));
      }
    }
    if (!matched) wrong.push_back(fmt::format("{}: no example holds a line it matches", s.id));
  }
  for (const auto& [name, info] : t.classes) {
    if (info.meaning.empty()) wrong.push_back(fmt::format("{}: has no meaning", name));
    for (const auto& [key, flags] : info.flags) {
      const size_t at = key.find('@');
      if (!kServers.contains(key.substr(0, at)))
        wrong.push_back(fmt::format("{}: flags of an unknown server: {}", name, key));
      if (at != std::string::npos && !kPhases.contains(key.substr(at + 1)))
        wrong.push_back(fmt::format("{}: flags of an unknown phase: {}", name, key));
      if (flags.empty()) wrong.push_back(fmt::format("{}: no flags under {}", name, key));
    }
    for (const auto& [phase, text] : info.phases)
      if (!kPhases.contains(phase) || text.empty()) wrong.push_back(fmt::format("{}: unknown phase {}", name, phase));
  }
  for (const Marker& m : t.markers)
    if (m.text.size() < 4) wrong.push_back(fmt::format("marker \"{}\" must have 4 bytes or more", m.text));
  for (const Compound& c : t.compounds)
    if (!t.classes.contains(c.cause)) wrong.push_back(fmt::format("compound {}: unknown class {}", c.name, c.cause));
  return wrong;
}

}  // namespace mettle::diagnose

#include "diagnose/labelled_logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_map.h"
#include "diagnose/diagnose.h"
#include "diagnose/line_head.h"
#include "diagnose/signatures.h"

namespace mettle::diagnose {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Expected {
  std::string cause, rank, phase, confidence;
  uint64_t line = 0;
  bool has_rank = false;
};

Diagnosis of_text(const std::string& log) {
  Diagnoser d;
  d.read_text(log, "log");
  return d.finish();
}

// The line of a row's own example that the row speaks of.
uint64_t line_of(const Signature& s, const std::string& log) {
  uint64_t number = 0;
  for (size_t at = 0; at < log.size(); ++number) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string_view line = std::string_view(log).substr(at, end - at);
    if (s.pattern.search(s.generic ? parse_head(line).body : line)) return number + 1;
    at = end + 1;
  }
  return 0;
}

void score(SelfTest& t, const std::string& name, const Expected& want, const Diagnosis& got) {
  ++t.cases;
  if (want.cause == "HEALTHY") {
    ++t.healthy_cases;
    t.healthy_called_broken += got.healthy() ? 0 : 1;
  }
  const uint64_t line = got.evidence.empty() ? 0 : got.evidence[0].line;
  std::string wrong;
  if (got.cause != want.cause)
    wrong = fmt::format("must be {}, is {} ({}: {})", want.cause, got.cause, got.signature, got.sentence);
  else if (want.line > 0 && line != want.line)
    wrong = fmt::format("evidence must be line {}, is line {}", want.line, line);
  else if (want.has_rank && got.rank != want.rank)
    wrong = fmt::format("rank must be \"{}\", is \"{}\"", want.rank, got.rank);
  else if (!want.phase.empty() && got.phase != want.phase)
    wrong = fmt::format("phase must be {}, is {}", want.phase, got.phase);
  else if (!want.confidence.empty() && name_of(got.confidence) != want.confidence)
    wrong = fmt::format("confidence must be {}, is {}", want.confidence, name_of(got.confidence));
  if (wrong.empty()) {
    ++t.right;
  } else {
    t.wrong.push_back(name + ": " + wrong);
  }
}

}  // namespace

SelfTest test_signatures() {
  SelfTest t;
  for (const std::string& fault : lint(table())) {
    ++t.cases;
    t.wrong.push_back("table: " + fault);
  }
  for (const Signature& s : table().signatures)
    for (size_t i = 0; i < s.examples.size(); ++i) {
      const Example& example = s.examples[i];
      const Diagnosis got = of_text(example.log);
      // An example whose answer is the row's class shows the row's line.
      const uint64_t line = i == 0 && example.cause == s.cause ? line_of(s, example.log) : 0;
      score(t, fmt::format("{} {}", s.id, i == 0 ? "example" : fmt::format("near miss {}", i)),
            {example.cause, {}, {}, {}, line}, got);
    }
  for (const Compound& c : table().compounds) {
    Expected want{c.cause, c.rank, {}, c.confidence, c.line, true};
    score(t, "compound \"" + c.name + "\"", want, of_text(c.log));
  }
  return t;
}

SelfTest test_folder(const std::string& folder) {
  const std::string list = folder + "/expected.json";
  if (!fs::exists(list))
    fail(Code::kInvalidRequest, fmt::format("{}: must be a folder of logs with an expected.json", folder));
  SelfTest t;
  try {
    const Json expected = Json::parse(read_file(list, size_t{16} << 20));
    for (const auto& [name, j] : expected.items()) {
      const Json o = j.value("options", Json::object());
      Options options;
      if (o.contains("exit_code")) options.exit_code = o.at("exit_code").get<int>();
      if (o.contains("silent_s")) options.silent_s = o.at("silent_s").get<int>();
      options.device = o.value("device", "");
      if (o.contains("dmesg")) options.dmesg = {folder + "/" + o.at("dmesg").get<std::string>()};
      Diagnoser d(options);
      d.read_path(folder + "/" + name);
      const Expected want{j.at("cause"),
                          j.value("rank", ""),
                          j.value("phase", ""),
                          j.value("confidence", ""),
                          j.value("line", uint64_t{0}),
                          j.contains("rank")};
      score(t, name, want, d.finish());
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      const std::string end = entry.path().extension().string();
      if ((end == ".log" || end == ".gz" || entry.is_directory()) && !expected.contains(name)) {
        ++t.cases;
        t.wrong.push_back(name + ": is not named in expected.json");
      }
    }
  } catch (const Json::exception& e) {
    fail(Code::kInvalidRequest, fmt::format("{}: must map names of logs to what is expected: {}", list, e.what()));
  }
  return t;
}

}  // namespace mettle::diagnose

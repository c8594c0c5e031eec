#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "doctor/doctor.h"

namespace mettle::doctor {
namespace {

using Json = nlohmann::ordered_json;

Colour colour_of(Severity severity) {
  return severity == Severity::kError     ? Colour::kRed
         : severity == Severity::kWarning ? Colour::kYellow
         : severity == Severity::kOk      ? Colour::kGreen
                                          : Colour::kNone;
}

}  // namespace

std::string report_text(const Report& report, bool colour) {
  // Painted after the table is set: escapes have no width.
  size_t names = 0;
  for (const Finding& f : report.findings) names = std::max(names, f.name.size());
  std::string text, group;
  int counts[4] = {};
  for (const Finding& f : report.findings) {
    ++counts[static_cast<size_t>(f.severity)];
    if (f.group != group)
      text += fmt::format("{}{}\n", group.empty() ? "" : "\n", paint(Colour::kBold, f.group, colour));
    group = f.group;
    const std::string word = fmt::format("{:<7}", name_of(f.severity));
    text += fmt::format("  {}  {:<{}}  {}\n", paint(colour_of(f.severity), word, colour), f.name, names, f.value);
    if (!f.why.empty()) text += fmt::format("  {:<7}  {:<{}}  why: {}\n", "", "", names, f.why);
    if (!f.fix.empty()) text += fmt::format("  {:<7}  {:<{}}  fix: {}\n", "", "", names, f.fix);
  }
  return text + fmt::format("\n{} errors, {} warnings, {} notes, {} ok\n", counts[3], counts[2], counts[1], counts[0]);
}

std::string report_json(const Report& report) {
  Json findings = Json::array(), leftovers = Json::array(), files = Json::array();
  for (const Finding& f : report.findings)
    findings.push_back({{"group", f.group},
                        {"name", f.name},
                        {"severity", name_of(f.severity)},
                        {"value", f.value},
                        {"why", f.why},
                        {"fix", f.fix}});
  for (const Process& p : report.leftovers)
    leftovers.push_back({{"pid", p.pid}, {"age_seconds", p.age_seconds}, {"command", p.command}});
  for (const auto& file : report.files) files.push_back(file.string());
  const Json all = {{"worst", name_of(report.worst())},
                    {"findings", findings},
                    {"leftovers", {{"processes", leftovers}, {"files", files}}}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mettle::doctor

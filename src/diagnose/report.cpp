// A diagnosis as JSON and as text; the table of signatures.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "diagnose/diagnose.h"
#include "diagnose/signatures.h"

namespace mettle::diagnose {
namespace {

using Json = nlohmann::ordered_json;

Json lines_of(const std::vector<Line>& lines, bool remarks) {
  Json list = Json::array();
  for (const Line& line : lines) {
    Json j = {{"file", line.file}, {"line", line.line}, {"text", line.text}};
    if (remarks) j["why"] = line.remark;
    list.push_back(std::move(j));
  }
  return list;
}

Colour colour_of(const Diagnosis& d) {
  if (d.healthy()) return Colour::kGreen;
  return d.cause == "UNKNOWN" ? Colour::kYellow : Colour::kRed;
}

std::string list_of(const char* title, const std::vector<std::string>& items, bool colour) {
  if (items.empty()) return {};
  std::string text = paint(Colour::kBold, title, colour) + "\n";
  for (const std::string& item : items) text += "  " + printable(item) + "\n";
  return text;
}

std::string list_of(const char* title, const std::vector<Line>& lines, bool colour) {
  if (lines.empty()) return {};
  std::string text = paint(Colour::kBold, title, colour) + "\n";
  for (const Line& line : lines) {
    text += fmt::format("  {}:{}: {}\n", printable(line.file), line.line, printable(line.text));
    if (!line.remark.empty()) text += "      " + paint(Colour::kDim, printable(line.remark), colour) + "\n";
  }
  return text;
}

}  // namespace

std::string_view name_of(Confidence confidence) {
  return confidence == Confidence::kHigh ? "high" : confidence == Confidence::kMedium ? "medium" : "low";
}

std::string to_json(const Diagnosis& d) {
  const Json j = {{"cause", d.cause},
                  {"sentence", d.sentence},
                  {"confidence", name_of(d.confidence)},
                  {"phase", d.phase},
                  {"rank", d.rank},
                  {"engine", d.engine},
                  {"device", d.device},
                  {"signature", d.signature},
                  {"evidence", lines_of(d.evidence, false)},
                  {"misleading", lines_of(d.misleading, true)},
                  {"remedy", d.remedy},
                  {"missing", d.missing},
                  {"notes", d.notes}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_text(const Diagnosis& d, bool colour) {
  std::string text = fmt::format("{}  {}\n", paint(colour_of(d), d.cause, colour), printable(d.sentence));
  text += fmt::format("confidence {}, phase {}", name_of(d.confidence), d.phase.empty() ? "not known" : d.phase);
  if (!d.engine.empty()) text += ", server " + d.engine;
  if (!d.device.empty()) text += ", device " + d.device;
  text += "\n";
  text += list_of("evidence", d.evidence, colour);
  text += list_of("misleading", d.misleading, colour);
  text += list_of("try", d.remedy, colour);
  text += list_of("would make it surer", d.missing, colour);
  text += list_of("also seen", d.notes, colour);
  return text;
}

std::string signature_list(bool json) {
  if (json) {
    Json list = Json::array();
    for (const Signature& s : table().signatures)
      list.push_back({{"id", s.id},
                      {"phrase", s.phrase},
                      {"engine", s.engine},
                      {"class", s.cause},
                      {"confidence", name_of(s.confidence)},
                      {"tell", s.tell},
                      {"remedy", s.remedy}});
    return list.dump(2) + "\n";
  }
  mettle::Table text({"id", "class", "confidence", "engine", "what it tells"});
  for (const Signature& s : table().signatures)
    text.add({s.id, s.cause, std::string(name_of(s.confidence)), s.engine, s.tell});
  return text.text();
}

}  // namespace mettle::diagnose

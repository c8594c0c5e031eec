// Renders chat templates for run_templates.py. Standard input: one JSON object a line, {"source": template, "cases":
// [variables, ...]}. Standard output: for each line a list with {"text"} or {"code", "error"} for each case.
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "text/chat_template.h"

using Json = nlohmann::ordered_json;

namespace {

Json failure(const mettle::Error& e) {
  return {{"code", e.code == mettle::Code::kBadModel ? "bad model" : "invalid request"}, {"error", e.message}};
}

Json render_all(const Json& request) {
  Json results = Json::array();
  std::optional<mettle::ChatTemplate> chat;
  Json refusal;
  try {
    chat.emplace(request.at("source").get_ref<const std::string&>());
  } catch (const mettle::Error& e) {
    refusal = failure(e);
  }
  for (const Json& variables : request.at("cases")) {
    try {
      results.push_back(chat ? Json{{"text", chat->render(variables)}} : refusal);
    } catch (const mettle::Error& e) {
      results.push_back(failure(e));
    }
  }
  return results;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) std::cout << render_all(Json::parse(line)).dump() << "\n";
}

#include "sweep/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace mettle::sweep {
namespace {

std::string slug(const std::string& name) {
  std::string out;
  for (const unsigned char c : name) {
    if (c < 128 && (std::isalnum(c) != 0 || c == '.' || c == '_'))
      out += static_cast<char>(std::tolower(c));
    else if (!out.empty() && out.back() != '-')
      out += '-';
    if (out.size() == 48) break;
  }
  while (!out.empty() && (out.back() == '-' || out.back() == '.')) out.pop_back();
  return out.empty() ? "cell" : out;
}

void set_axis(ServerPlan& server, const Axis& axis, const std::string& value) {
  if (axis.name.starts_with("env.")) {
    const std::string name = axis.name.substr(4);
    std::erase_if(server.env, [&](const auto& pair) { return pair.first == name; });
    server.env.emplace_back(name, value);
    return;
  }
  if (value == "false") return;
  server.command.push_back(axis.name);
  if (value != "true") server.command.push_back(value);
}

std::string label(const Axis& axis, const std::string& value) {
  std::string name = axis.name.starts_with("env.") ? axis.name.substr(4) : axis.name;
  name.erase(0, name.find_first_not_of('-'));
  std::string text = fmt::format("{}={}", name, value.substr(0, 60));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return text;
}

// In one pass, so that nothing in what is put in is replaced again.
std::string filled(const std::string& word, const Plan& plan, const ServerPlan& server, const Places& places) {
  const std::pair<std::string_view, std::string> values[] = {{"{port}", std::to_string(places.port)},
                                                             {"{model}", model_of(plan, server)},
                                                             {"{out}", places.out},
                                                             {"{mettle}", places.mettle}};
  std::string out;
  for (size_t i = 0; i < word.size();) {
    const auto* found = std::find_if(std::begin(values), std::end(values), [&](const auto& value) {
      return std::string_view(word).substr(i).starts_with(value.first);
    });
    if (found == std::end(values)) {
      out += word[i++];
    } else {
      out += found->second;
      i += found->first.size();
    }
  }
  return out;
}

}  // namespace

void make_cells(Plan& plan, const std::vector<ExplicitCell>& cells) {
  for (const ExplicitCell& from : cells) {
    Cell cell{0, from.name, "", from.server};
    cell.server.command.insert(cell.server.command.end(), from.args.begin(), from.args.end());
    plan.cells.push_back(std::move(cell));
  }
  if (!plan.axes.empty() || cells.empty()) {
    std::vector<Cell> product = {{0, "", "", plan.server}};
    for (const Axis& axis : plan.axes) {
      std::vector<Cell> longer;
      for (const Cell& cell : product)
        for (const std::string& value : axis.values) {
          Cell next = cell;
          set_axis(next.server, axis, value);
          next.name += (next.name.empty() ? "" : " ") + label(axis, value);
          longer.push_back(std::move(next));
        }
      product = std::move(longer);
    }
    if (plan.axes.empty()) product[0].name = plan.name;
    plan.cells.insert(plan.cells.end(), product.begin(), product.end());
  }
  if (plan.cells.size() > kMostCells)
    fail(Code::kInvalidRequest,
         fmt::format("{}: must have at most {} cells, has {}", plan.path, kMostCells, plan.cells.size()));
  std::set<std::string> names;
  for (size_t i = 0; i < plan.cells.size(); ++i) {
    Cell& cell = plan.cells[i];
    cell.number = static_cast<int>(i) + 1;
    cell.folder = fmt::format("{:02}-{}", cell.number, slug(cell.name));
    if (!names.insert(cell.name).second)
      fail(Code::kInvalidRequest, fmt::format("{}: two cells are called \"{}\"", plan.path, cell.name));
  }
}

std::string model_of(const Plan& plan, const ServerPlan& server) {
  if (server.model.empty()) return "";
  std::error_code ec;
  const std::filesystem::path path = std::filesystem::path(plan.folder) / server.model;
  return std::filesystem::exists(path, ec) ? path.lexically_normal().string() : server.model;
}

std::vector<std::string> words_of(const Plan& plan, const ServerPlan& server, const Places& places) {
  std::vector<std::string> words = server.command;
  for (std::string& word : words) word = filled(word, plan, server, places);
  return words;
}

Pairs environment_of(const Plan& plan, const ServerPlan& server, const Places& places) {
  Pairs env = server.env;
  for (auto& [name, value] : env) value = filled(value, plan, server, places);
  return env;
}

std::string ready_pattern(const ServerPlan& server) {
  if (!server.ready.starts_with("log:")) return "";
  const size_t start = server.ready.find_first_not_of(' ', 4);
  return start == std::string::npos ? "" : server.ready.substr(start);
}

std::string value_of(const Cell& cell, const std::string& axis) {
  if (axis.starts_with("env.")) {
    for (const auto& [name, value] : cell.server.env)
      if (name == axis.substr(4)) return value;
    return "";
  }
  const std::vector<std::string>& words = cell.server.command;
  for (size_t i = words.size(); i-- > 0;) {  // the last one counts
    if (words[i].starts_with(axis + "=")) return words[i].substr(axis.size() + 1);
    if (words[i] == axis) return i + 1 < words.size() && !words[i + 1].starts_with('-') ? words[i + 1] : "true";
  }
  return "";
}

std::string identity(const Plan& plan, const Cell& cell) {
  using Json = nlohmann::ordered_json;
  const ServerPlan& s = cell.server;
  Json prompts = Json::array();
  for (const CanaryPrompt& p : plan.canary.prompts)
    prompts.push_back({p.prompt, p.answer, static_cast<int>(p.match), p.max_tokens});
  Json env = Json::array();
  for (const auto& [name, value] : s.env) env.push_back({name, value});
  const Json all = {
      {"command", s.command},
      {"env", env},
      {"model", s.model},
      {"served_model", s.served_model},
      {"ready", s.ready},
      {"endpoint", s.endpoint},
      {"port", s.port},
      {"seconds", {s.deadline_seconds, s.silence_seconds, s.stop_seconds}},
      {"device", plan.device},
      {"canary", {prompts, plan.canary.logprobs, plan.canary.reference, plan.canary.agreement, plan.canary.seconds}},
      {"bench",
       {plan.bench.concurrency, plan.bench.requests, plan.bench.input_words, plan.bench.output_tokens,
        plan.bench.prompts, plan.bench.seconds}},
  };
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace mettle::sweep

#include "text/tool_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kMaxDepth = 200;  // of a JSON call: writing it out again is recursive

bool skip(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

void skip_space(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The types that a schema allows, also those of its alternatives.
void add_types(const Json& schema, std::set<std::string>& types, int depth = 0) {
  if (!schema.is_object() || depth > 4) return;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) types.insert(type->get<std::string>());
    if (type->is_array()) {
      for (const Json& t : *type) {
        if (t.is_string()) types.insert(t.get<std::string>());
      }
    }
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto choices = schema.find(key);
    if (choices == schema.end() || !choices->is_array()) continue;
    for (const Json& choice : *choices) add_types(choice, types, depth + 1);
  }
}

const Json* member(const Json* object, const std::string& key) {
  if (!object || !object->is_object()) return nullptr;
  const auto it = object->find(key);
  return it == object->end() ? nullptr : &*it;
}

const Json* properties_of(const Json& tools, const std::string& name) {
  if (!tools.is_array()) return nullptr;
  for (const Json& tool : tools) {
    const Json* function = member(&tool, "function");
    if (!function) function = &tool;
    const Json* its_name = member(function, "name");
    if (its_name && its_name->is_string() && its_name->get_ref<const std::string&>() == name)
      return member(member(function, "parameters"), "properties");
  }
  return nullptr;
}

// A parameter's raw text as JSON text: what the schema calls a string stays as it is, everything else is JSON already
// when it can be read as such.
std::string value_text(std::string_view raw, const Json* schema) {
  std::set<std::string> types;
  if (schema) add_types(*schema, types);
  if (types.empty()) return json_string(raw);
  std::string text(raw);
  // Chat templates print the scalars of past calls as Python does, so models write them that way.
  if (types.contains("boolean") && text == "True") text = "true";
  if (types.contains("boolean") && text == "False") text = "false";
  if (types.contains("null") && text == "None") text = "null";
  if (types.contains("string")) return types.contains("null") && text == "null" ? text : json_string(raw);
  return Json::accept(text) ? text : json_string(raw);
}

size_t nesting(std::string_view json) {
  size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); i++) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') i++;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if ((c == '}' || c == ']') && depth > 0) depth--;
  }
  return deepest;
}

}  // namespace

bool parse_xml_call(std::string_view body, const std::string& tools_json, ToolCall& call) {
  skip_space(body);
  if (!skip(body, kFunction)) return false;
  const size_t name_end = body.find('>');
  if (name_end == std::string_view::npos || name_end == 0) return false;
  call.name = body.substr(0, name_end);
  if (call.name.find_first_of("<\n") != std::string::npos) return false;
  body.remove_prefix(name_end + 1);

  const Json tools = Json::parse(tools_json, nullptr, false);
  const Json* properties = properties_of(tools, call.name);
  std::vector<std::pair<std::string, std::string>> values;
  while (true) {
    skip_space(body);
    if (skip(body, kFunctionEnd)) break;
    if (!skip(body, kParameter)) return false;
    const size_t key_end = body.find('>');
    if (key_end == std::string_view::npos || key_end == 0) return false;
    const std::string key(body.substr(0, key_end));
    body.remove_prefix(key_end + 1);
    // A value may hold text that looks like the tag: it ends where the call goes on behind the tag.
    size_t end = 0;
    std::string_view rest;
    for (;; end++) {
      end = body.find(kParameterEnd, end);
      if (end == std::string_view::npos) return false;
      rest = body.substr(end + kParameterEnd.size());
      skip_space(rest);
      if (rest.starts_with(kParameter) || rest.starts_with(kFunctionEnd)) break;
    }
    std::string_view raw = body.substr(0, end);
    if (raw.starts_with('\n')) raw.remove_prefix(1);
    if (raw.ends_with('\n')) raw.remove_suffix(1);
    body = rest;
    const auto same = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == key; });
    if (same != values.end()) values.erase(same);
    values.emplace_back(key, value_text(raw, member(properties, key)));
  }
  skip_space(body);
  if (!body.empty()) return false;
  call.arguments = "{";
  for (const auto& [key, value] : values) {
    if (call.arguments.size() > 1) call.arguments += ", ";
    call.arguments += json_string(key) + ": " + value;
  }
  call.arguments += "}";
  return true;
}

bool parse_json_call(std::string_view body, ToolCall& call) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_discarded() || nesting(body) > kMaxDepth) return false;
  const Json* name = member(&json, "name");
  if (!name || !name->is_string() || name->get_ref<const std::string&>().empty()) return false;
  call.name = name->get<std::string>();
  const Json* arguments = member(&json, "arguments");
  if (!arguments) {
    call.arguments = "{}";
    return true;
  }
  if (arguments->is_string()) {  // some models write the object as a string of JSON
    call.arguments = arguments->get<std::string>();
    return nesting(call.arguments) <= kMaxDepth && Json::parse(call.arguments, nullptr, false).is_object();
  }
  if (!arguments->is_object()) return false;
  call.arguments = arguments->dump(-1, ' ', false, Json::error_handler_t::replace);
  return true;
}

}  // namespace mettle

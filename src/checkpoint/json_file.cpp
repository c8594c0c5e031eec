#include "checkpoint/json_file.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "base/error.h"
#include "base/file_map.h"

namespace mettle {

using nlohmann::json;

json parse_json_object(std::string_view text, const std::string& name, int depth) {
  std::vector<std::set<std::string>> keys;  // of each open object
  const auto watch = [&](int level, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (level >= depth) fail(Code::kBadModel, fmt::format("{}: must be nested at most {} deep", name, depth));
      if (event == json::parse_event_t::object_start) keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        fail(Code::kBadModel, fmt::format("{}: key \"{}\" is there twice", name, key.substr(0, 200)));
    }
    return true;
  };
  json object;
  try {
    object = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    fail(Code::kBadModel, fmt::format("{}: is not valid JSON: {}", name, std::string(error.what()).substr(0, 300)));
  }
  if (!object.is_object())
    fail(Code::kBadModel, fmt::format("{}: must be a JSON object, is {}", name, object.type_name()));
  return object;
}

json read_json_object(const std::string& path, JsonLimits limits) {
  return parse_json_object(read_file(path, limits.bytes), path, limits.depth);
}

}  // namespace mettle

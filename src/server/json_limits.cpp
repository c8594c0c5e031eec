#include "server/json_limits.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

// Counts brackets, commas and colons outside of strings. What is malformed is left for the parser to find.
void check_size(std::string_view text, const RequestJsonLimits& limits) {
  if (text.size() > limits.bytes)
    fail(Code::kInvalidRequest, fmt::format("body: at most {} bytes, got {}", limits.bytes, text.size()));
  std::vector<size_t> keys;  // of each open bracket
  size_t values = 0, comparisons = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i)
          if (text[i] == '\\') ++i;
        break;
      case '[':
      case '{':
        if (keys.size() == limits.depth)
          fail(Code::kInvalidRequest,
               fmt::format("body: at most {} nested arrays and objects, one more at byte {}", limits.depth, i));
        keys.push_back(0);
        ++values;
        break;
      case ']':
      case '}':
        if (!keys.empty()) keys.pop_back();
        break;
      case ',':
        if (++values > limits.values)
          fail(Code::kInvalidRequest, fmt::format("body: at most {} values, one more at byte {}", limits.values, i));
        break;
      case ':':
        if (!keys.empty() && ++keys.back() > limits.keys)
          fail(Code::kInvalidRequest,
               fmt::format("body: at most {} keys in one object, one more at byte {}", limits.keys, i));
        if (!keys.empty()) comparisons += keys.back();
        if (comparisons > limits.comparisons)
          fail(Code::kInvalidRequest,
               fmt::format("body: at most {} comparisons of keys, all objects together; one more at byte {}",
                           limits.comparisons, i));
        break;
      default:
        break;
    }
  }
}

// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..." without the library's name.
std::string reason_of(const std::exception& error) {
  std::string text = error.what();
  if (const size_t end = text.find("] "); text.starts_with("[json.exception") && end != std::string::npos)
    text.erase(0, end + 2);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  if (text.size() > 300) text = text.substr(0, 300) + "...";
  return text;
}

}  // namespace

Json parse_json(std::string_view text, const RequestJsonLimits& limits) {
  check_size(text, limits);
  std::vector<std::unordered_set<std::string>> seen;  // keys of each open object
  const Json::parser_callback_t check_keys = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) seen.emplace_back();
    if (event == Json::parse_event_t::object_end) seen.pop_back();
    if (event == Json::parse_event_t::key && !seen.back().insert(value.get<std::string>()).second)
      fail(Code::kInvalidRequest,
           fmt::format("body: key \"{}\" is given twice in one object", value.get<std::string>()));
    return true;
  };
  try {
    return Json::parse(text, check_keys);
  } catch (const Json::exception& e) {
    fail(Code::kInvalidRequest, "body: must be JSON; " + reason_of(e));
  }
}

}  // namespace mettle

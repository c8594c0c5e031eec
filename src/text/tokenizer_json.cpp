#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include "base/error.h"

namespace mettle {
namespace {

std::string describe(const simdjson::dom::element& e) {
  using simdjson::dom::element_type;
  switch (e.type()) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING: {
      const std::string_view text = e.get_string().value_unsafe();
      return fmt::format("\"{}\"", text.size() <= 60 ? text : text.substr(0, 60));
    }
    default:
      return simdjson::minify(e);
  }
}

}  // namespace

void JsonValue::fail_kind(std::string_view requirement) const {
  fail(Code::kBadModel, fmt::format("{}: {}, got {}", place_, requirement, describe(element_)));
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  simdjson::dom::object object;
  if (element_.get(object)) fail_kind("must be an object");
  simdjson::dom::element value;
  if (object.at_key(key).get(value) || value.is_null()) return std::nullopt;
  return JsonValue(value, fmt::format("{}.{}", place_, key));
}

JsonValue JsonValue::at(std::string_view key) const {
  if (auto value = find(key)) return *value;
  fail(Code::kBadModel, fmt::format("{}: must have \"{}\", got none", place_, key));
}

std::vector<JsonValue> JsonValue::items() const {
  simdjson::dom::array array;
  if (element_.get(array)) fail_kind("must be an array");
  std::vector<JsonValue> items;
  for (const simdjson::dom::element e : array) items.emplace_back(e, fmt::format("{}[{}]", place_, items.size()));
  return items;
}

std::string_view JsonValue::string() const {
  std::string_view text;
  if (element_.get(text)) fail_kind("must be a string");
  return text;
}

bool JsonValue::boolean(std::string_view key, bool absent) const {
  const auto value = find(key);
  if (!value) return absent;
  bool flag = false;
  if (value->element_.get(flag)) value->fail_kind("must be true or false");
  return flag;
}

int64_t JsonValue::integer() const {
  int64_t number = 0;
  if (element_.get(number)) fail_kind("must be an integer");
  return number;
}

}  // namespace mettle

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/model_folder.h"

namespace mettle {
using Json = nlohmann::json;  // not `json`: ConfigReader has a member of that name

namespace {

// A value as it stands in the file, cut short.
std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

[[noreturn]] void bad(const std::string& path, std::string_view key, std::string_view must, const Json* value) {
  fail(Code::kBadModel,
       fmt::format("{}.{}: must be {}, {}", path, key, must, value == nullptr ? "is missing" : "got " + shown(*value)));
}

// An integer, also when a tool wrote it as 8.0.
bool as_integer(const Json& value, int64_t& out) {
  if (value.is_number_unsigned()) {
    const uint64_t u = value.get<uint64_t>();
    out = static_cast<int64_t>(u);
    return u <= static_cast<uint64_t>(INT64_MAX);
  }
  if (value.is_number_integer()) {
    out = value.get<int64_t>();
    return true;
  }
  if (!value.is_number_float()) return false;
  const double d = value.get<double>();
  if (!(std::fabs(d) < 9e15) || d != std::floor(d)) return false;
  out = static_cast<int64_t>(d);
  return true;
}

const Json* find(const Json& object, std::string_view key) {
  const auto at = object.find(std::string(key));
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

}  // namespace

ConfigReader::ConfigReader(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (!object.is_object()) fail(Code::kBadModel, fmt::format("{}: must be an object, got {}", path_, shown(object)));
}

bool ConfigReader::has(std::string_view key) const { return find(*object_, key) != nullptr; }

int64_t ConfigReader::integer(std::string_view key, int64_t least, int64_t most) const {
  const Json* value = find(*object_, key);
  int64_t n = 0;
  if (value == nullptr || !as_integer(*value, n) || n < least || n > most)
    bad(path_, key, fmt::format("an integer in {}..{}", least, most), value);
  return n;
}

int64_t ConfigReader::integer(std::string_view key, int64_t least, int64_t most, int64_t otherwise) const {
  return has(key) ? integer(key, least, most) : otherwise;
}

double ConfigReader::number(std::string_view key, double least, double most) const {
  const Json* value = find(*object_, key);
  const double n = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
  if (!(n >= least && n <= most)) bad(path_, key, fmt::format("a number in {}..{}", least, most), value);
  return n;
}

double ConfigReader::number(std::string_view key, double least, double most, double otherwise) const {
  return has(key) ? number(key, least, most) : otherwise;
}

bool ConfigReader::boolean(std::string_view key, bool otherwise) const {
  const Json* value = find(*object_, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) bad(path_, key, "true or false", value);
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view otherwise) const {
  const Json* value = find(*object_, key);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) bad(path_, key, "a string", value);
  return value->get<std::string>();
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const Json* value = find(*object_, key);
  std::vector<std::string> list;
  if (value == nullptr) return list;
  if (!value->is_array()) bad(path_, key, "a list of strings", value);
  for (const Json& item : *value) {
    if (!item.is_string()) bad(path_, key, "a list of strings", value);
    list.push_back(item.get<std::string>());
  }
  return list;
}

std::vector<int64_t> ConfigReader::integers(std::string_view key) const {
  const Json* value = find(*object_, key);
  std::vector<int64_t> list;
  if (value == nullptr) return list;
  int64_t n = 0;
  if (as_integer(*value, n)) return {n};
  if (!value->is_array()) bad(path_, key, "an integer or a list of integers", value);
  for (const Json& item : *value) {
    if (!as_integer(item, n)) bad(path_, key, "an integer or a list of integers", value);
    list.push_back(n);
  }
  return list;
}

ConfigReader ConfigReader::child(std::string_view key) const {
  const Json* value = find(*object_, key);
  if (value == nullptr || !value->is_object()) bad(path_, key, "an object", value);
  return ConfigReader(*value, fmt::format("{}.{}", path_, key));
}

}  // namespace mettle

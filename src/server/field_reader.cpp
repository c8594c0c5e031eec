#include "server/field_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace mettle {
namespace {

// What came, short enough for a message.
std::string shown(const Json& value) {
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {} keys", value.size());
  if (value.is_string() && value.get_ref<const std::string&>().size() > 80)
    return fmt::format("a string of {} bytes", value.get_ref<const std::string&>().size());
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

void refuse_field(const std::string& field, const std::string& message) {
  fail(Code::kInvalidRequest, fmt::format("{}: {}", field, message), field);
}

void refuse_field(const std::string& field, const std::string& requirement, const Json& got) {
  refuse_field(field, fmt::format("{}, got {}", requirement, shown(got)));
}

int64_t integer_of(const Json& value, const std::string& field, int64_t least, int64_t most) {
  const std::string requirement = fmt::format("must be an integer in {}..{}", least, most);
  // Some clients write whole numbers as 1.0.
  if (value.is_number_float()) {
    const double v = value.get<double>();
    if (!(std::abs(v) < 9e15) || v != std::floor(v)) refuse_field(field, requirement, value);
    if (v < static_cast<double>(least) || v > static_cast<double>(most)) refuse_field(field, requirement, value);
    return static_cast<int64_t>(v);
  }
  if (!value.is_number_integer()) refuse_field(field, requirement, value);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    refuse_field(field, requirement, value);
  const int64_t v = value.get<int64_t>();
  if (v < least || v > most) refuse_field(field, requirement, value);
  return v;
}

const std::string& text_of(const Json& value, const std::string& field) {
  if (!value.is_string()) refuse_field(field, "must be a string", value);
  return value.get_ref<const std::string&>();
}

FieldReader::FieldReader(const Json& value, std::string path) : object_(&value), path_(std::move(path)) {
  if (!value.is_object()) refuse_field(path_.empty() ? "body" : path_, "must be an object", value);
}

std::string FieldReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const Json* FieldReader::find(std::string_view key) const {
  const auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

const Json& FieldReader::need(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  refuse_field(path_of(key), "is required");
}

std::optional<double> FieldReader::number(std::string_view key, double least, double most) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double v = value->is_number() ? value->get<double>() : NAN;
  if (!(v >= least && v <= most))
    refuse_field(path_of(key), fmt::format("must be a number in {}..{}", least, most), *value);
  return v;
}

std::optional<int64_t> FieldReader::integer(std::string_view key, int64_t least, int64_t most) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return integer_of(*value, path_of(key), least, most);
}

std::optional<bool> FieldReader::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse_field(path_of(key), "must be true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> FieldReader::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return text_of(*value, path_of(key));
}

const Json* FieldReader::array(std::string_view key) const {
  const Json* value = find(key);
  if (value != nullptr && !value->is_array()) refuse_field(path_of(key), "must be an array", *value);
  return value;
}

const Json* FieldReader::object(std::string_view key) const {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) refuse_field(path_of(key), "must be an object", *value);
  return value;
}

}  // namespace mettle

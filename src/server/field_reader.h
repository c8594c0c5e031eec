// Typed reads of request fields. Every error names the field as the client wrote it: "messages[2].content". A field
// that is null counts as absent.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

using Json = nlohmann::ordered_json;

class FieldReader {
 public:
  // Fails unless value is an object. path is empty for the body itself.
  FieldReader(const Json& value, std::string path);

  const Json* find(std::string_view key) const;  // nullptr when absent or null
  std::string path_of(std::string_view key) const;
  const Json& need(std::string_view key) const;

  std::optional<double> number(std::string_view key, double least, double most) const;
  std::optional<int64_t> integer(std::string_view key, int64_t least, int64_t most) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  const Json* array(std::string_view key) const;
  const Json* object(std::string_view key) const;
  const Json& json() const { return *object_; }

 private:
  const Json* object_;
  std::string path_;
};

// "field: requirement, got VALUE", with param = field.
[[noreturn]] void refuse_field(const std::string& field, const std::string& requirement, const Json& got);
[[noreturn]] void refuse_field(const std::string& field, const std::string& message);
int64_t integer_of(const Json& value, const std::string& field, int64_t least, int64_t most);
const std::string& text_of(const Json& value, const std::string& field);

}  // namespace mettle

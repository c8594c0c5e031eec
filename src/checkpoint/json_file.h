// JSON out of files that anybody may have made: size, depth and syntax are checked before a value is used.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mettle {

struct JsonLimits {
  size_t bytes = size_t{16} << 20;
  int depth = 64;
};

// Fails with kBadModel (name, what is wrong and where): not JSON, nested deeper than the limit, a key twice in one
// object, or not an object.
nlohmann::json parse_json_object(std::string_view text, const std::string& name, int depth);
nlohmann::json read_json_object(const std::string& path, JsonLimits limits = {});

}  // namespace mettle

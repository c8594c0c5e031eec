// Parsing of request bodies: strict JSON with limits that are checked before anything is built from it.
#pragma once
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace mettle {

struct RequestJsonLimits {
  size_t bytes = size_t{16} << 20;
  size_t depth = 64;                // nested arrays and objects
  size_t values = 2'000'000;        // array items and object members in all
  size_t keys = 4096;               // members of one object (the ordered object is searched linearly)
  size_t comparisons = 50'000'000;  // of these searches: each key with those before it in its object
};

// Fails with kInvalidRequest, naming the byte offset: not JSON, not UTF-8, over a limit, a key given twice.
nlohmann::ordered_json parse_json(std::string_view text, const RequestJsonLimits& limits = {});

}  // namespace mettle

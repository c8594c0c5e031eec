// A value of a tokenizer.json together with its place in the file, for error messages that name both.
#pragma once
#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

class JsonValue {
 public:
  JsonValue(simdjson::dom::element element, std::string place) : element_(element), place_(std::move(place)) {}

  const std::string& place() const { return place_; }
  const simdjson::dom::element& element() const { return element_; }
  bool is_null() const { return element_.is_null(); }

  std::optional<JsonValue> find(std::string_view key) const;  // nothing for absent or null; fails unless an object
  JsonValue at(std::string_view key) const;                   // fails for absent or null
  std::vector<JsonValue> items() const;
  std::string_view string() const;
  bool boolean(std::string_view key, bool absent) const;  // a member; absent or null is `absent`
  int64_t integer() const;

  // kBadModel "<place>: <requirement>, got <kind>"
  [[noreturn]] void fail_kind(std::string_view requirement) const;

 private:
  simdjson::dom::element element_;
  std::string place_;
};

}  // namespace mettle

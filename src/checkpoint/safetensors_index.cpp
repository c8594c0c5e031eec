#include "checkpoint/safetensors_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace mettle {
namespace {

using nlohmann::json;

class Walker : public json::json_sax_t {
 public:
  explicit Walker(const std::string& path) : path_(path) {}
  std::vector<std::pair<std::string, std::string>> entries;
  bool found = false;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(int64_t n) override { return value(std::to_string(n)); }
  bool number_unsigned(uint64_t n) override { return value(std::to_string(n)); }
  bool number_float(double, const std::string& text) override { return value(text); }
  bool binary(json::binary_t&) override { return value("binary"); }
  bool start_array(size_t) override {
    value("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool string(std::string& file) override {
    if (!in_map()) return value("a string");
    if (file.empty() || file[0] == '.' || file.find('/') != std::string::npos || file.find('\0') != std::string::npos)
      bad(fmt::format("\"{}\"", file.substr(0, 200)));
    entries.emplace_back(std::move(key_), std::move(file));
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ == 1 && key_ == "weight_map") {
      if (found) fail(Code::kBadModel, fmt::format("{}: weight_map is there twice", path_));
      found = in_map_ = true;
    } else if (depth_ > 0) {
      value("an object");
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool key(std::string& key) override {
    key_ = std::move(key);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    fail(Code::kBadModel, fmt::format("{}: is not valid JSON at byte {}: {}", path_, position,
                                      std::string(error.what()).substr(0, 200)));
  }

 private:
  bool in_map() const { return in_map_ && depth_ == 2; }
  [[noreturn]] void bad(const std::string& what) const {
    fail(Code::kBadModel, fmt::format("{}: weight_map.{}: must be the name of a file in the same folder, got {}", path_,
                                      key_.substr(0, 200), what));
  }
  // A value that is no string: nothing of ours outside weight_map, an error in it.
  bool value(const std::string& what) const {
    if (in_map()) bad(what);
    if (depth_ == 0 || (depth_ == 1 && key_ == "weight_map"))
      fail(Code::kBadModel,
           fmt::format("{}: weight_map must be an object that names tensors and their files, got {}", path_, what));
    return true;
  }

  const std::string& path_;
  std::string key_;
  size_t depth_ = 0;
  bool in_map_ = false;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> read_weight_map(std::string_view text, const std::string& path) {
  Walker walker(path);
  json::sax_parse(text.begin(), text.end(), &walker);
  if (walker.entries.empty())
    fail(Code::kBadModel, fmt::format("{}: weight_map must be an object that names tensors and their files, {}", path,
                                      walker.found ? "is empty" : "is missing"));
  std::unordered_set<std::string_view> names;
  names.reserve(walker.entries.size());
  for (const auto& [tensor, file] : walker.entries)
    if (!names.insert(tensor).second)
      fail(Code::kBadModel, fmt::format("{}: weight_map.{}: is there twice", path, tensor.substr(0, 200)));
  return std::move(walker.entries);
}

}  // namespace mettle

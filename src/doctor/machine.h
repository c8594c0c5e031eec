// The machine's own description of itself, below a root: "/" or, in tests, a folder that looks like one.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mettle::doctor {

struct Space {
  int64_t total = 0, free = 0;
};

class Machine {
 public:
  explicit Machine(std::filesystem::path root = "/") : root_(std::move(root)) {}
  virtual ~Machine() = default;

  std::filesystem::path at(const std::string& path) const;  // path begins with '/'
  // The first `limit` bytes; nothing when it cannot be read. Never waits for more to come.
  std::optional<std::string> read(const std::string& path, size_t limit = size_t{1} << 20) const;
  std::optional<int64_t> number(const std::string& path) const;    // nothing for "max" and other words
  std::string line(const std::string& path) const;                 // the first one, trimmed; "" when there is none
  std::vector<std::string> list(const std::string& folder) const;  // names, sorted, at most 65,536
  bool exists(const std::string& path) const;
  virtual std::optional<Space> space(const std::string& path) const;  // of the nearest folder that exists

 private:
  std::filesystem::path root_;
};

}  // namespace mettle::doctor

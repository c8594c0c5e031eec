// What the files that are kept between runs have in common: names, one writer at a time, a checksum.
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace mettle {

uint64_t checksum(std::string_view bytes);  // FNV-1a: tells damage, proves nothing

// "69e643baeef67ddf.json"
bool is_store_name(std::string_view name);

// One writer at a time. Where a folder cannot be locked, or its holder was stopped, it goes on without: then two
// writers may lose a result to each other, which is a miss later, never a wrong one.
class StoreTurn {
 public:
  static constexpr std::chrono::milliseconds kPatience{10'000};
  explicit StoreTurn(const std::filesystem::path& folder, std::chrono::milliseconds patience = kPatience);
  ~StoreTurn();
  StoreTurn(const StoreTurn&) = delete;
  StoreTurn& operator=(const StoreTurn&) = delete;
  bool held() const { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

// Deletes what writers that were killed left behind. Only while it is our turn: no other writer is at work.
void sweep_leftovers(const std::filesystem::path& folder);

}  // namespace mettle

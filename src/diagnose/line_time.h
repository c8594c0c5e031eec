// Times as logs write them, at the start of a text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mettle::diagnose {

// How much of the date a time tells; times of different clocks have no distance.
enum class Clock { kDay, kYear, kFull, kBoot, kStart };

struct ParsedTime {
  size_t length = 0;  // bytes it takes, 0: no time stands here
  int64_t ms = 0;     // since some fixed moment; a time of day alone counts from midnight
  bool whole_seconds = true;
  Clock clock = Clock::kDay;
};

// 2026-01-02T10:00:00.123Z, 2026-01-02 10:00:00,123, 01-02 10:00:00, 01/02/2026-10:00:00, 2026/01/02 10:00:00,
// Jan  2 10:00:00, 10:00:00.123, and before a level 1.02.345.678 of llama-server: minutes since its start
ParsedTime parse_time(std::string_view s);
// "12345.678901", seconds since boot
int64_t parse_seconds(std::string_view s);

}  // namespace mettle::diagnose

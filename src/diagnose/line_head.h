// What stands around the text of a log line: terminal codes, wrappers of containers and journals, who wrote it and
// when.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "diagnose/line_time.h"

namespace mettle::diagnose {

// Takes colour and cursor codes out of `line` into `clean`. Carriage returns stay: they part lines that overwrote each
// other.
void strip_terminal_codes(std::string_view line, std::string& clean);

// {"log": "...", ...} or {"message": "..."} as container engines and shippers write a line: its text into `text`, true;
// false when the line is no such object.
bool unwrap_json(std::string_view line, std::string& text);

enum class Level { kNone, kDebug, kInfo, kWarn, kError };

struct Head {
  std::string_view body;           // what the program meant to say: wrappers, time, level and place removed
  std::string_view rank;           // "TP3", "PP0_TP1", "3": which worker; empty for the front end or none
  std::optional<int64_t> time_ms;  // since some fixed moment: only differences count
  bool whole_seconds = true;       // the time has no fraction
  Clock clock = Clock::kDay;
  Level level = Level::kNone;
  bool kernel = false;  // a line of the kernel's log
};

// Views into `line`, which must hold no terminal codes.
Head parse_head(std::string_view line);

// One number for what ranks are called: "TP3" and "3" are the same worker.
std::string rank_label(std::string_view rank);

}  // namespace mettle::diagnose

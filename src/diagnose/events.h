// What the collector keeps of a log, and the classifier judges: bounded, whatever the size of the log.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/diagnose.h"
#include "diagnose/line_head.h"
#include "diagnose/signatures.h"

namespace mettle::diagnose {

struct Place {
  uint64_t seq = 0;  // order of reading over all files, 0: nowhere
  std::optional<int64_t> time_ms;
  bool whole_seconds = true;
  Clock clock = Clock::kDay;
  Line line;
};

// The first match of one signature on one rank, and what became of the others.
struct Event {
  const Signature* signature = nullptr;
  Place place;
  std::string rank, phase;
  Level level = Level::kNone;
  bool kernel = false;   // a line of the kernel's log
  bool handled = false;  // the line says that it goes on without
  bool probing = false;  // reported by a tuner that tries tactics
  std::vector<std::string> groups;
  uint64_t count = 1, last_seq = 0;
  std::optional<int64_t> last_time_ms;
  Clock last_clock = Clock::kDay;
  int64_t silence_ms = 0;  // longest pause after it
  bool last_line = false;  // nothing came after it
  uint64_t streak = 1;     // longest row of matches without anything produced in between
  uint64_t row = 1;        // the row that goes on now
};

// A line that tells of an error; the answer when no finding stands.
struct Unmatched {
  Place place;
  std::string rank, phase;
};

// From one start of the server to the next.
struct Run {
  std::vector<Event> events;
  std::vector<Unmatched> unmatched;
  std::vector<Line> misleading;
  std::map<std::string, Place> facts;
  Place ready, first_success, last_success, stopping, last_frame, tuned;
  uint64_t cut_trace = 0;  // the newest line of a traceback whose end is not seen yet
  uint64_t successes = 0, lines = 0;
  std::string phase;  // empty: no line told of one yet
  std::map<std::string, std::string> rank_phase;
};

struct Collected {
  std::vector<Run> runs;  // the last two at most: the one before and the last one
  uint64_t earlier_runs = 0;
  std::map<std::string, uint64_t> engines;  // votes
  std::string device;
  Place device_place;
  std::string toolkit;
  Place toolkit_place;
  Place last;               // the last line that holds more than blanks
  bool kernel_log = false;  // the kernel's log was among the files
  int looked_at = 0;        // of the first lines of all files
  int no_text = 0;          // of those: with bytes that no text has
};

}  // namespace mettle::diagnose

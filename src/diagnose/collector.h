// Turns lines into events: finds signatures and markers, knows rank, time and phase of each, follows tracebacks.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "diagnose/events.h"
#include "diagnose/guarded_patterns.h"
#include "diagnose/needle_index.h"

namespace mettle::diagnose {

class Collector {
 public:
  Collector(const Table& table, const NeedleIndex& index);

  void begin_file(const std::string& name, bool kernel_log);
  void line(std::string_view raw, uint64_t number);
  // The log is over.
  Collected finish();

 private:
  struct Stamp {
    std::optional<int64_t> time_ms;
    bool whole_seconds = true;
    Clock clock = Clock::kDay;
  };
  struct Trace {
    bool open = false;
    int rank_of_phase = 0;  // how much the frame's phase says
    std::string phase;
    int idle = 0;  // lines since the last frame
  };

  void text(std::string_view clean);
  void remember(std::string_view clean);
  bool cheap(std::string_view clean);
  void full(std::string_view clean);
  void marker(const Marker& m, const NeedleHit& hit, std::string_view clean, const Head& head);
  void match(std::string_view clean, const Head& head);
  void record(const Signature& s, std::string_view clean, const Head& head, std::vector<std::string_view>& groups);
  void trace(std::string_view clean, const Head& head);
  void unmatched(std::string_view clean, const Head& head);
  void watch(const Head& head);
  void end_log();
  void start_run();
  bool failed() const;
  bool inherits() const;
  Place place(std::string_view clean, const Head& head) const;
  std::string phase_of(const std::string& rank) const;
  std::string label(const Head& head);
  Run& run() { return out_.runs.back(); }
  const Run& run() const { return out_.runs.back(); }

  using Owner = NeedleIndex::Owner;

  const Table& table_;
  const std::vector<std::vector<NeedleIndex::Owner>>& owners_;
  NeedleScanner scanner_;
  GuardedPatterns patterns_;
  std::vector<NeedleHit> hits_;
  std::vector<std::string_view> groups_;  // of the newest match
  std::vector<uint32_t> candidates_;      // signatures whose needle occurs in this line
  std::vector<uint32_t> misleads_;
  std::string clean_, json_;

  Collected out_;
  std::string file_;
  bool kernel_file_ = false;
  uint64_t number_ = 0, seq_ = 0;
  std::map<std::string, Trace> traces_;
  int open_traces_ = 0;
  std::string inherited_;  // rank of the traceback whose lines carry no head
  uint64_t inherited_until_ = 0;
  std::unordered_map<std::string, size_t> index_;  // signature, rank, handled -> event
  std::set<std::string> ranks_;
  std::map<std::string, Stamp> last_time_;  // per rank
  Stamp file_time_;                         // of the newest line that has one
  bool quiet_match_ = false;                // this line is known noise or a wrapper
  int watched_lines_ = 0;
  long watched_ = -1;  // event that waits for the next time stamp
};

}  // namespace mettle::diagnose

// What became of one cell, and how it is kept: result.json in the cell's folder, written whole or not at all.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mettle::sweep {

enum class Outcome { kWorks, kFailed, kSkipped };
std::string_view name_of(Outcome outcome);

// Figures at one concurrency.
struct BenchPoint {
  int concurrency = 0, completed = 0, failed = 0;
  double seconds = 0, request_throughput = 0, output_throughput = 0;
  double ttft_p50_ms = 0, ttft_p99_ms = 0, tpot_p50_ms = 0, tpot_p99_ms = 0, e2e_p50_ms = 0, e2e_p99_ms = 0;
  double power_w = 0, power_limit_w = 0, sm_mhz = 0, busy_percent = 0;  // means over all GPUs used; 0: not readable
};

struct KeptAnswer {
  std::string prompt, text, finding;
};

struct CellResult {
  std::string name;
  Outcome outcome = Outcome::kFailed;
  std::string stage;     // where it failed: before, launch, ready, canary, bench, health, stop; of a skipped one: skip
  std::string cause;     // a class of diagnose, or one of sweep's own
  std::string sentence;  // for people
  std::string confidence, phase, engine;
  std::vector<std::string> evidence;  // "log.txt:12: text"
  std::vector<std::string> remedy, notes, leftovers;
  std::string end;  // "exit code 1"; empty: it ran until it was stopped
  double ready_seconds = 0, seconds = 0;
  uint64_t log_bytes = 0, log_left_out = 0;
  std::string model;
  std::vector<KeptAnswer> answers;
  std::vector<BenchPoint> bench;
  std::vector<std::string> command;  // as it ran
  std::vector<std::pair<std::string, std::string>> env;
};

std::string to_json(const CellResult& result);
// Nothing when the text is no result, for instance because a disk cut it.
std::optional<CellResult> result_of(const std::string& json);

// Writes a file beside it and renames. Fails with kDevice.
void write_whole(const std::string& path, const std::string& text);
// "" when it is not there or longer than `limit`.
std::string read_small(const std::string& path, size_t limit = size_t{8} << 20);

}  // namespace mettle::sweep

// A plan of servers to try: commands, the matrix of flags, what an answer must be, what is measured. Read from TOML.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mettle::sweep {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// How one server is started, asked and ended. Words of the command may hold {port} {model} {out} {mettle}.
struct ServerPlan {
  std::vector<std::string> command;  // argument list, never a shell's line
  Pairs env;
  std::string model;              // a path is relative to the plan's folder
  std::string served_model;       // name that requests carry; "": the first of /v1/models
  std::string ready = "/health";  // a path that answers 2xx, or "log: REGEX" that a line of the log matches
  std::string endpoint = "chat";  // or "completions"
  int port = 0;                   // 0: a free one, another for each cell
  double deadline_seconds = 900;  // until it is ready
  double silence_seconds = 300;   // without a byte in the log, until it is ready: it hangs
  double stop_seconds = 20;       // from SIGTERM until everything of it must be gone
};

enum class Match { kExact, kPrefix, kContains };

struct CanaryPrompt {
  std::string prompt, answer;  // no answer: only the detectors judge
  Match match = Match::kExact;
  int max_tokens = 32;
};

struct CanaryPlan {
  std::vector<CanaryPrompt> prompts;
  bool logprobs = true;
  std::string reference;   // base URL of a server whose answers count for prompts without one
  double agreement = 0.5;  // of an answer's start with the reference's, as a share of its length
  double seconds = 120;    // for one answer
};

struct BenchPlan {
  std::vector<int> concurrency;  // empty: nothing is measured
  int requests = 16;             // at each concurrency
  int input_words = 64;          // of random prompts
  int output_tokens = 32;
  std::vector<std::string> prompts;  // taken in turn instead of random ones
  double seconds = 300;              // for one request
};

// What makes a cell better than another one.
enum class Goal {
  kThroughput,  // output tokens/s at the largest concurrency
  kTpot,        // time per output token at the smallest
  kTtft,        // time to the first token at the smallest
};

struct Axis {
  std::string name;                 // "--flag", or "env.NAME"
  std::vector<std::string> values;  // "true": the flag alone, "false": without it
};

// Once a cell with some value of the axis failed with one of these causes, no other cell with that value is tried.
struct SkipRule {
  std::string axis;
  std::vector<std::string> causes;
};

struct Cell {
  int number = 0;      // from 1, in the order of the plan
  std::string name;    // unique
  std::string folder;  // "03-triton"
  ServerPlan server;
};

struct Plan {
  std::string path, folder;  // of the file, absolute
  std::string name, device;  // device: "sm120", or empty
  ServerPlan server;
  std::vector<Axis> axes;
  std::vector<Cell> cells;   // explicit ones, then those of the matrix
  bool skip_refused = true;  // leave out cells that `mettle explain` refuses on the device
  std::vector<SkipRule> skips;
  CanaryPlan canary;
  BenchPlan bench;
  Goal goal = Goal::kThroughput;
  uint64_t log_bytes = uint64_t{16} << 20;  // of a cell's log: half from its start, half from its end
};

constexpr int kMostCells = 500;

// Fails with kInvalidRequest (file, place, what was expected, what stands there): unreadable, no TOML, unknown keys
// with the list of those that exist, values out of range.
Plan read_plan(const std::string& path);
Plan parse_plan(const std::string& text, const std::string& path);

// The value that a cell's command line or environment gives an axis; "" when it says nothing of it.
std::string value_of(const Cell& cell, const std::string& axis);
// Everything that decides a cell's result, as JSON: a finished cell is kept while this stays the same.
std::string identity(const Plan& plan, const Cell& cell);

}  // namespace mettle::sweep

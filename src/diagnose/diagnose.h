// Why a server died, read from its log: the root cause, where it stands, what misleads, what to try next.
//   Diagnoser d(options); d.read_path("server.log"); d.finish()
// Any size, constant memory. The classes of causes and all wording are data: signatures.json.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::diagnose {

enum class Confidence { kLow, kMedium, kHigh };
std::string_view name_of(Confidence confidence);

struct Line {
  std::string file;    // as it was given; "-" for standard input
  uint64_t line = 0;   // from 1
  std::string text;    // without colour codes and carriage returns, cut to 600 bytes
  std::string remark;  // of a misleading line: why it misleads
};

struct Diagnosis {
  std::string cause;      // a class of signatures.json, "HEALTHY" or "UNKNOWN"
  std::string signature;  // the row that decided, empty when none did
  std::string sentence;
  Confidence confidence = Confidence::kLow;
  std::string phase;   // import, load, shuffle, tune, capture, first request, serving; empty: not known
  std::string engine;  // sglang, vllm, trtllm, llama-server, mettle, or empty: not recognised
  std::string device;  // "sm120", or empty: not known
  std::string rank;    // the first rank that failed, or empty: the log names none
  std::vector<Line> evidence;
  std::vector<Line> misleading;
  std::vector<std::string> remedy;   // flags and settings of that server
  std::vector<std::string> missing;  // what would raise the confidence
  std::vector<std::string> notes;    // seen, and not the cause

  bool healthy() const { return cause == "HEALTHY"; }
};

struct Options {
  std::string device;                   // "sm120": overrules what the log says
  std::optional<int> exit_code;         // of the process; 128 + n or -n for signal n
  std::optional<int> silent_s;          // it was still running and had written nothing for so long
  std::vector<std::string> dmesg;       // kernel logs
  size_t line_limit = size_t{1} << 16;  // bytes of a line that are looked at
};

class Diagnoser {
 public:
  // Fails with kInvalidRequest when options.device is no SM ("sm120", "120", "12.0", "sm_120a").
  explicit Diagnoser(Options options = {});
  ~Diagnoser();
  Diagnoser(const Diagnoser&) = delete;
  Diagnoser& operator=(const Diagnoser&) = delete;

  // A file (plain or gzip), "-" for standard input, or a folder: every text file below it, by name.
  // Fails with kInvalidRequest when it cannot be read or is damaged.
  void read_path(const std::string& path);
  // Text from memory, whole lines, under the name of a file.
  void read_text(std::string_view text, const std::string& file);
  uint64_t bytes() const;
  uint64_t lines() const;

  // Reads options.dmesg and answers. Called once.
  Diagnosis finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One JSON object with the fields of Diagnosis, in their order.
std::string to_json(const Diagnosis& diagnosis);
// For people; colour as the terminal can.
std::string to_text(const Diagnosis& diagnosis, bool colour);
// The table of signatures and rules.
std::string signature_list(bool json);

}  // namespace mettle::diagnose

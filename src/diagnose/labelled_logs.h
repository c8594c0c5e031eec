// The classifier held against the examples of its own table and against folders of labelled logs.
#pragma once
#include <string>
#include <vector>

namespace mettle::diagnose {

struct SelfTest {
  size_t cases = 0, right = 0;
  size_t healthy_cases = 0, healthy_called_broken = 0;
  std::vector<std::string> wrong;  // one line each

  bool passed() const { return right == cases && healthy_called_broken == 0; }
};

// The linter, every signature's example and its near misses, and the compound logs.
SelfTest test_signatures();

// Logs of a folder with a file expected.json: {"name.log": {"cause": ..., and, where it matters, "rank", "line" (of the
// first evidence), "phase", "confidence" (at most), "options": {"exit_code", "silent_s", "device", "dmesg": "name"}}}.
// Every log of the folder must be named there and the other way round. Fails with kInvalidRequest when the folder is
// none.
SelfTest test_folder(const std::string& folder);

}  // namespace mettle::diagnose

// Finds which of many short texts occur in a line, in one pass over its bytes, whatever their number (Aho-Corasick as a
// table). ASCII case does not count.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::diagnose {

struct NeedleHit {
  uint32_t needle;  // index in the list it was built from
  uint32_t end;     // place in the line just after it
};

class NeedleScanner {
 public:
  explicit NeedleScanner(const std::vector<std::string>& needles);

  // Appends the first hit of each needle that occurs, in the order of their ends; at most one per needle.
  void scan(std::string_view line, std::vector<NeedleHit>& hits);

 private:
  std::array<uint8_t, 256> class_{};     // byte -> column
  std::vector<uint32_t> next_;           // state * columns + column -> offset of the next state's row
  std::vector<uint32_t> outputs_start_;  // per state, into outputs_
  std::vector<uint32_t> outputs_;
  std::vector<uint32_t> seen_;  // per needle, the scan that found it last
  uint32_t columns_ = 0;
  uint32_t first_output_ = 0;  // offset of the first row whose state ends a needle
  uint32_t scan_ = 0;
};

}  // namespace mettle::diagnose

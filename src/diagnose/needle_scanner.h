// Finds which of many short texts occur in a line, in one pass over its bytes, whatever their number: the first three
// bytes of each needle are looked up in a bit map as they pass by. ASCII case does not count.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::diagnose {

struct NeedleHit {
  uint32_t needle;  // index in the list it was built from
  uint32_t end;     // place in the line just after it
};

// Copies share the tables; each has its own state of the scan.
class NeedleScanner {
 public:
  // Needles have three bytes or more; fails with kInternal otherwise.
  explicit NeedleScanner(const std::vector<std::string>& needles);

  // Appends the first hit of each needle that occurs, in the order of their starts.
  void scan(std::string_view line, std::vector<NeedleHit>& hits);

 private:
  struct Tables;
  void verify(std::string_view line, size_t start, uint32_t key, std::vector<NeedleHit>& hits);

  std::shared_ptr<const Tables> tables_;
  std::vector<uint32_t> seen_;  // per needle, the scan that found it last
  uint32_t scan_ = 0;
};

}  // namespace mettle::diagnose

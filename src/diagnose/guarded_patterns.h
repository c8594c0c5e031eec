// What is asked of every line with an error besides its cause: whether it only talks of it, whether it goes on without,
// whose rank it names. These patterns cost more than all else that is done for such a line and nearly none holds a word
// of theirs: one pass over the line finds which of them could match at all.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "diagnose/needle_scanner.h"
#include "diagnose/pattern.h"

namespace mettle::diagnose {

enum class Guard : unsigned {
  kEcho,       // a prompt, an answer or a request that is printed: what it says is not about the server
  kRemark,     // help, documentation, and sentences about what would be: the words before the match
  kHandled,    // the line says that it goes on without
  kProbing,    // of a tuner that tries tactics
  kNamedRank,  // "rank 3 ... exit code -9": the launcher speaks of a rank
};
constexpr size_t kGuards = 5;

const Pattern& pattern_of(Guard guard);

class GuardedPatterns {
 public:
  GuardedPatterns();
  // The line that the next searches are about; it must stay where it is.
  void begin(std::string_view line);
  // Of a part of that line; exactly what the pattern alone says.
  bool search(Guard guard, std::string_view part, std::vector<std::string_view>* groups = nullptr);

 private:
  NeedleScanner scanner_;
  std::vector<NeedleHit> hits_;
  std::string_view line_;
  bool scanned_ = false;
  std::array<bool, kGuards> possible_{};
};

}  // namespace mettle::diagnose

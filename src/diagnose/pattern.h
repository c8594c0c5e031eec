// A regular expression, compiled once. Matching has a limit of steps, so that no log can stall it: what passes the
// limit does not match.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::diagnose {

class Pattern {
 public:
  Pattern() = default;
  // Fails with kInternal when `source` does not compile. Bytes, not code points; case counts unless it says (?i).
  explicit Pattern(const std::string& source);

  // Groups of the first match, group 0 first; empty when there is none. Groups that took no part are empty views.
  bool search(std::string_view text, std::vector<std::string_view>* groups = nullptr) const;
  // Every alternative of the pattern holds a literal run; the longest run that every match must contain, in lower case,
  // or empty when the pattern promises none.
  static std::string required_literal(std::string_view source);

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace mettle::diagnose

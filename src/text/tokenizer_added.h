// Added tokens (<|im_start|>, <think>, ...): where they stand in a text.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool normalized = false;   // looked for after normalization, and itself normalized
  bool single_word = false;  // only between characters that belong to no word
  bool lstrip = false;       // takes the white space before it too
  bool rstrip = false;
};

class AddedMatcher {
 public:
  AddedMatcher() = default;
  // Tokens with empty content never match. Of two of one content the first counts.
  explicit AddedMatcher(std::vector<AddedToken> tokens);

  struct Segment {
    uint32_t begin, end;
    int32_t id;  // -1: plain text
  };
  // The text in order, leftmost and longest matches first taken.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  std::array<Range, 256> by_first_byte_{};
};

}  // namespace mettle

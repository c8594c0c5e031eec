// Finds the pieces of text that a pre-tokenizer's pattern matches. The patterns of well-known models have hand-written
// splitters (chosen by the exact text of the pattern); any other goes through PCRE2.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

struct Piece {
  uint32_t begin, end;  // byte offsets, half open
  bool operator==(const Piece&) const = default;
};

class Splitter {
 public:
  virtual ~Splitter() = default;
  // Appends the matches in `text` (valid UTF-8, below 4 GiB), in order and without overlap. Safe to call concurrently.
  virtual void find(std::string_view text, std::vector<Piece>& matches) const = 0;
  virtual std::string_view method() const = 0;  // "hand-written", "pcre2", "literal"
};

// Fails with kBadModel (`origin`, the pattern, the place) for a pattern that PCRE2 cannot take or takes otherwise than
// Oniguruma, which the pattern was written for.
std::unique_ptr<Splitter> make_splitter(const std::string& pattern, const std::string& origin);
std::unique_ptr<Splitter> make_literal_splitter(const std::string& literal);

// The two ways to a splitter: nullptr when the pattern is not one of the known ones; PCRE2 whatever the pattern.
std::unique_ptr<Splitter> make_known_splitter(std::string_view pattern);
std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, const std::string& origin);
// The pattern as PCRE2 must see it to mean what it means to Oniguruma.
std::string pcre2_pattern(std::string_view pattern, const std::string& origin);

// The known patterns, for tests and for pre-tokenizers that carry theirs by name.
namespace patterns {
extern const std::string_view kQwen2, kQwen35, kLlama3, kDeepSeekNumbers, kDeepSeekCjk, kDeepSeekWords, kDigit, kDigits,
    kGpt2;
}  // namespace patterns

}  // namespace mettle

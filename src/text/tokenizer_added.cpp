#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/unicode.h"

namespace mettle {
namespace {

// Start of the last character before `at`.
size_t before(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool has_class(std::string_view text, size_t at, uint8_t mask) {
  return unicode::classes()[unicode::decode(text.data() + at).code] & mask;
}

}  // namespace

AddedMatcher::AddedMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](auto& a, auto& b) { return a.content < b.content; });
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[static_cast<uint8_t>(tokens_[i].content[0])];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

// Narrows the sorted tokens byte by byte to those that the text begins with.
const AddedToken* AddedMatcher::longest_at(std::string_view text, size_t at) const {
  Range range = by_first_byte_[static_cast<uint8_t>(text[at])];
  const AddedToken* best = nullptr;
  for (size_t length = 1; range.begin < range.end; ++length) {
    // Of the tokens that share these `length` bytes, the one that ends here sorts first.
    if (tokens_[range.begin].content.size() == length) best = &tokens_[range.begin++];
    if (range.begin == range.end || at + length == text.size()) break;
    if (range.begin + 1 == range.end) {
      const AddedToken& only = tokens_[range.begin];
      return text.substr(at).starts_with(only.content) ? &only : best;
    }
    const auto byte = static_cast<uint8_t>(text[at + length]);
    const auto at_byte = [&](const AddedToken& t) { return static_cast<uint8_t>(t.content[length]); };
    const auto first = tokens_.begin() + range.begin, last = tokens_.begin() + range.end;
    const auto low = std::partition_point(first, last, [&](const AddedToken& t) { return at_byte(t) < byte; });
    const auto high = std::partition_point(low, last, [&](const AddedToken& t) { return at_byte(t) == byte; });
    range = {static_cast<uint32_t>(low - tokens_.begin()), static_cast<uint32_t>(high - tokens_.begin())};
  }
  return best;
}

void AddedMatcher::split(std::string_view text, std::vector<Segment>& segments) const {
  size_t done = 0;
  const auto put = [&](size_t begin, size_t end, int32_t id) {
    segments.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), id});
  };
  for (size_t at = 0; at < text.size();) {
    if (by_first_byte_[static_cast<uint8_t>(text[at])].end == 0) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word) {
      const bool word_before = begin > 0 && has_class(text, before(text, begin), unicode::kWord);
      const bool word_after = end < text.size() && has_class(text, end, unicode::kWord);
      if (word_before || word_after) continue;
    }
    if (token->lstrip) {
      for (size_t b; begin > done && (b = before(text, begin), b >= done && has_class(text, b, unicode::kSpace));)
        begin = b;
    }
    if (token->rstrip) {
      while (end < text.size() && has_class(text, end, unicode::kSpace))
        end += unicode::decode(text.data() + end).bytes;
    }
    if (done < begin) put(done, begin, -1);
    put(begin, end, token->id);
    done = end;
  }
  if (done < text.size()) put(done, text.size(), -1);
}

}  // namespace mettle

#include "text/splitter.h"

#include "text/unicode.h"

namespace mettle {

namespace patterns {
// Qwen2, Qwen2.5, Qwen3
const std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen3.5, Qwen3.6: combining marks belong to words
const std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Llama 3, GLM-4, GLM-5: digits in groups of up to three
const std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// DeepSeek-V3 and its successors: three patterns, one after the other
const std::string_view kDeepSeekNumbers = R"(\p{N}{1,3})";
const std::string_view kDeepSeekCjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
const std::string_view kDeepSeekWords =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
// The pre-tokenizer Digits, one by one and in runs
const std::string_view kDigit = R"(\p{N})";
const std::string_view kDigits = R"(\p{N}+)";
const std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}  // namespace patterns

namespace {

using unicode::Char;

class Reader {
 public:
  Reader(std::string_view text) : text_(text), classes_(unicode::classes()) {}

  bool at_end(size_t at) const { return at >= text_.size(); }
  size_t size() const { return text_.size(); }
  char byte(size_t at) const { return text_[at]; }
  Char at(size_t at) const { return unicode::decode(text_.data() + at); }
  uint8_t classes(uint32_t code) const { return classes_[code]; }

  // The end of the run, from `at` on, of characters that have one of the classes in `mask`.
  size_t run(size_t at, uint8_t mask) const {
    while (at < text_.size()) {
      const auto lead = static_cast<uint8_t>(text_[at]);
      if (lead < 0x80) {
        if (!(classes_[lead] & mask)) return at;
        ++at;
        continue;
      }
      const Char c = this->at(at);
      if (!(classes_[c.code] & mask)) return at;
      at += c.bytes;
    }
    return at;
  }
  // The end of the run of characters that have none of the classes in `mask`.
  size_t run_without(size_t at, uint8_t mask) const {
    while (at < text_.size()) {
      const Char c = this->at(at);
      if (classes_[c.code] & mask) return at;
      at += c.bytes;
    }
    return at;
  }
  size_t newlines(size_t at) const {
    while (at < text_.size() && (text_[at] == '\r' || text_[at] == '\n')) ++at;
    return at;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ at a character of white space
  size_t white_space(size_t begin) const {
    size_t at = begin, last = begin, newline_end = 0;
    while (at < text_.size()) {
      const Char c = this->at(at);
      if (!(classes_[c.code] & unicode::kSpace)) break;
      last = at;
      at += c.bytes;
      if (c.code == '\r' || c.code == '\n') newline_end = at;
    }
    if (newline_end) return newline_end;
    return at == text_.size() || last == begin ? at : last;
  }

 private:
  std::string_view text_;
  const uint8_t* classes_;
};

// The end of (?i:'s|'t|'re|'ve|'m|'ll|'d) at an apostrophe, or `at`. U+017F (long s) is an s that ignores case.
size_t contraction(const Reader& in, size_t at) {
  if (in.at_end(at + 1)) return at;
  const auto lower = [&](size_t i) { return in.at_end(i) ? '\0' : static_cast<char>(in.byte(i) | 0x20); };
  const char a = lower(at + 1), b = lower(at + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
  if (in.at(at + 1).code == 0x17F) return at + 3;
  return at;
}

// Qwen2, Qwen3.5, Llama 3, GLM: one shape, two parameters. Every character belongs to some match.
class QwenSplitter final : public Splitter {
 public:
  QwenSplitter(uint8_t word_classes, int digits) : word_(word_classes), digits_(digits) {}
  std::string_view method() const override { return "hand-written"; }

  void find(std::string_view text, std::vector<Piece>& matches) const override {
    const Reader in(text);
    for (size_t at = 0; !in.at_end(at);) {
      const size_t end = match(in, at);
      matches.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
      at = end;
    }
  }

 private:
  size_t match(const Reader& in, size_t at) const {
    const Char c = in.at(at);
    const uint8_t classes = in.classes(c.code);
    const size_t next = at + c.bytes;
    if (classes & unicode::kLetter) return in.run(next, word_);
    if (classes & unicode::kNumber) return numbers(in, next);
    if (c.code == '\'') {
      const size_t end = contraction(in, at);
      if (end != at) return end;
    }
    const bool newline = c.code == '\r' || c.code == '\n';
    if (!newline && !in.at_end(next)) {
      const uint8_t after = in.classes(in.at(next).code);
      if (after & word_) return in.run(next, word_);
      const uint8_t not_other = unicode::kSpace | unicode::kNumber | word_;
      if (c.code == ' ' && !(after & not_other)) return in.newlines(in.run_without(next, not_other));
    }
    if (classes & unicode::kSpace) return in.white_space(at);
    if (classes & word_) return in.run(next, word_);  // marks without a letter, where marks are words
    return in.newlines(in.run_without(next, unicode::kSpace | unicode::kNumber | word_));
  }

  size_t numbers(const Reader& in, size_t at) const {
    for (int i = 1; i < digits_ && !in.at_end(at); ++i) {
      const Char c = in.at(at);
      if (!(in.classes(c.code) & unicode::kNumber)) break;
      at += c.bytes;
    }
    return at;
  }

  uint8_t word_;
  int digits_;
};

// The third pattern of DeepSeek-V3. Numbers and control characters belong to no match unless a word follows them.
class DeepSeekWordSplitter final : public Splitter {
 public:
  std::string_view method() const override { return "hand-written"; }

  void find(std::string_view text, std::vector<Piece>& matches) const override {
    const Reader in(text);
    for (size_t at = 0; !in.at_end(at);) {
      const size_t end = match(in, at);
      if (end == at) {
        at += in.at(at).bytes;
        continue;
      }
      matches.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end)});
      at = end;
    }
  }

 private:
  static constexpr uint8_t kWord = unicode::kLetter | unicode::kMark;
  static constexpr uint8_t kSign = unicode::kPunct | unicode::kSymbol;

  static bool ascii_letter(char c) { return static_cast<unsigned>((c | 0x20) - 'a') < 26; }

  static size_t match(const Reader& in, size_t at) {
    const Char c = in.at(at);
    const uint8_t classes = in.classes(c.code);
    const size_t next = at + c.bytes;
    if (classes & kWord) return in.run(next, kWord);
    if (classes & kSign) {
      if (c.code < 0x80 && !in.at_end(next) && ascii_letter(in.byte(next))) {
        size_t end = next + 1;
        while (!in.at_end(end) && ascii_letter(in.byte(end))) ++end;
        return end;
      }
      return in.newlines(in.run(next, kSign));
    }
    if (c.code != '\r' && c.code != '\n' && !in.at_end(next)) {
      const uint8_t after = in.classes(in.at(next).code);
      if (after & kWord) return in.run(next, kWord);
      if (c.code == ' ' && (after & kSign)) return in.newlines(in.run(next, kSign));
    }
    return classes & unicode::kSpace ? in.white_space(at) : at;
  }
};

// \p{N}{1,most}
class NumberSplitter final : public Splitter {
 public:
  explicit NumberSplitter(size_t most) : most_(most) {}
  std::string_view method() const override { return "hand-written"; }

  void find(std::string_view text, std::vector<Piece>& matches) const override {
    const Reader in(text);
    for (size_t at = 0;;) {
      const size_t begin = in.run_without(at, unicode::kNumber);
      if (in.at_end(begin)) return;
      at = begin + in.at(begin).bytes;
      for (size_t i = 1; i < most_ && !in.at_end(at); ++i) {
        const Char c = in.at(at);
        if (!(in.classes(c.code) & unicode::kNumber)) break;
        at += c.bytes;
      }
      matches.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(at)});
    }
  }

 private:
  size_t most_;
};

// Runs of Han, Hiragana and Katakana as DeepSeek delimits them
class CjkSplitter final : public Splitter {
 public:
  std::string_view method() const override { return "hand-written"; }

  void find(std::string_view text, std::vector<Piece>& matches) const override {
    size_t begin = std::string_view::npos;
    for (size_t at = 0; at < text.size();) {
      const Char c = unicode::decode(text.data() + at);
      const bool cjk = (c.code >= 0x4E00 && c.code <= 0x9FA5) || (c.code >= 0x3040 && c.code <= 0x30FF);
      if (cjk && begin == std::string_view::npos) begin = at;
      if (!cjk && begin != std::string_view::npos) {
        matches.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(at)});
        begin = std::string_view::npos;
      }
      at += c.bytes;
    }
    if (begin != std::string_view::npos) {
      matches.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(text.size())});
    }
  }
};

class LiteralSplitter final : public Splitter {
 public:
  explicit LiteralSplitter(std::string literal) : literal_(std::move(literal)) {}
  std::string_view method() const override { return "literal"; }

  void find(std::string_view text, std::vector<Piece>& matches) const override {
    for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos; at += literal_.size()) {
      matches.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal_.size())});
    }
  }

 private:
  std::string literal_;
};

}  // namespace

std::unique_ptr<Splitter> make_known_splitter(std::string_view pattern) {
  constexpr uint8_t kLetter = unicode::kLetter;
  if (pattern == patterns::kQwen2) return std::make_unique<QwenSplitter>(kLetter, 1);
  if (pattern == patterns::kQwen35) return std::make_unique<QwenSplitter>(kLetter | unicode::kMark, 1);
  if (pattern == patterns::kLlama3) return std::make_unique<QwenSplitter>(kLetter, 3);
  if (pattern == patterns::kDeepSeekNumbers) return std::make_unique<NumberSplitter>(3);
  if (pattern == patterns::kDigit) return std::make_unique<NumberSplitter>(1);
  if (pattern == patterns::kDigits) return std::make_unique<NumberSplitter>(SIZE_MAX);
  if (pattern == patterns::kDeepSeekCjk) return std::make_unique<CjkSplitter>();
  if (pattern == patterns::kDeepSeekWords) return std::make_unique<DeepSeekWordSplitter>();
  return nullptr;
}

std::unique_ptr<Splitter> make_literal_splitter(const std::string& literal) {
  return std::make_unique<LiteralSplitter>(literal);
}

std::unique_ptr<Splitter> make_splitter(const std::string& pattern, const std::string& origin) {
  if (auto known = make_known_splitter(pattern)) return known;
  return make_regex_splitter(pattern, origin);
}

}  // namespace mettle

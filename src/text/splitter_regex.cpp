// Patterns are written for Oniguruma in Ruby syntax; here they run in PCRE2. pcre2_pattern() rewrites what the two read
// differently and refuses what has no counterpart; PCRE2's tables are those of Unicode 14.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/splitter.h"
#include "text/unicode.h"

namespace mettle {
namespace {

constexpr size_t kPatternLimit = 64 << 10;
constexpr uint32_t kMatchLimit = 1'000'000, kDepthLimit = 10'000;  // steps and nested backtracks of one match

// \s of PCRE2 also takes U+180E; \w of Oniguruma also takes marks and the numbers of Latin-1.
constexpr std::string_view kSpaceSet = R"(\p{Z}\t-\r\x{85})";
constexpr std::string_view kWordSet = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

class Rewriter {
 public:
  Rewriter(std::string_view pattern, const std::string& origin) : in_(pattern), origin_(origin) {}

  std::string run() {
    while (at_ < in_.size()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    fail(Code::kBadModel, fmt::format("{}: the pattern must be one that PCRE2 can run, got {} at byte {} of {}",
                                      origin_, why, at_, in_));
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }

  void item() {
    const char c = peek();
    if (c == '[') return atom([&] { set(); });
    if (c == '\\') return atom([&] { escape(/*in_set=*/false); });
    if (c == '(') return open_group();
    if (c == ')') {
      if (groups_.empty()) refuse("a ')' too many");
      out_.push_back(in_[at_++]);
      atom_ = groups_.back();
      groups_.pop_back();
      return;
    }
    if (c == '{' && counted_quantifier()) return;
    if (c == '*' || c == '+' || c == '?' || c == '|') {
      out_.push_back(in_[at_++]);
      return;
    }
    atom([&] {
      do out_.push_back(in_[at_++]);
      while (at_ < in_.size() && (static_cast<uint8_t>(in_[at_]) & 0xC0) == 0x80);
    });
  }

  template <class F>
  void atom(F&& emit) {
    atom_ = out_.size();
    emit();
  }

  void open_group() {
    if (groups_.size() == 200) refuse("groups nested deeper than 200");
    groups_.push_back(out_.size());
    out_.push_back(in_[at_++]);
    if (peek() == '*') refuse("a verb");
    if (peek() != '?') return;
    size_t end = 1;
    while ((peek(end) >= 'a' && peek(end) <= 'z') || peek(end) == '-') ++end;
    // Ruby's m lets the dot match newlines; PCRE2's m is another thing.
    if (in_.substr(at_, end).find('m') != std::string_view::npos) refuse("the option m");
    out_.append(in_, at_, end);
    at_ += end;
    if (peek() == '<' || peek() == '=' || peek() == '!' || peek() == ':' || peek() == '>') {
      out_.push_back(in_[at_++]);
      if (out_.back() == '<' && (peek() == '=' || peek() == '!')) out_.push_back(in_[at_++]);
    }
  }

  // {n,m}+ and {n}? are a second quantifier in Ruby syntax (possessive and lazy in PCRE2); {,m} is {0,m}.
  bool counted_quantifier() {
    size_t end = at_ + 1;
    while (end < in_.size() && ((in_[end] >= '0' && in_[end] <= '9') || in_[end] == ',')) ++end;
    if (end >= in_.size() || in_[end] != '}' || end == at_ + 1) return false;
    std::string count(in_.substr(at_, end + 1 - at_));
    if (count[1] == ',') count.insert(1, "0");
    at_ = end + 1;
    out_ += count;
    const bool exact = count.find(',') == std::string::npos;
    if (peek() == '+' || (peek() == '?' && exact)) {
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
    return true;
  }

  void set() {
    out_.push_back(in_[at_++]);
    if (peek() == '^') out_.push_back(in_[at_++]);
    if (peek() == ']') refuse("a set that starts with ']'");
    while (at_ < in_.size() && peek() != ']') {
      if (peek() == '&' && peek(1) == '&') refuse("the set operation &&");
      if (peek() == '[') {
        if (peek(1) != ':') refuse("a set within a set");
        const size_t end = in_.find(":]", at_ + 2);
        if (end == std::string_view::npos) refuse("an unfinished [: :]");
        out_.append(in_, at_, end + 2 - at_);
        at_ = end + 2;
      } else if (peek() == '\\') {
        escape(/*in_set=*/true);
      } else {
        out_.push_back(in_[at_++]);
      }
    }
    if (at_ == in_.size()) refuse("an unfinished set");
    out_.push_back(in_[at_++]);
  }

  void escape(bool in_set) {
    const char c = peek(1);
    const auto put_set = [&](std::string_view inside, bool negated) {
      if (in_set && negated) refuse("a negated class within a set");
      out_ += in_set ? std::string(inside) : fmt::format("[{}{}]", negated ? "^" : "", inside);
      at_ += 2;
    };
    switch (c) {
      case '\0':
        refuse("a backslash at the end");
      case 's':
        return put_set(kSpaceSet, false);
      case 'S':
        return put_set(kSpaceSet, true);
      case 'w':
        return put_set(kWordSet, false);
      case 'W':
        return put_set(kWordSet, true);
      case 'h':
        return put_set("0-9A-Fa-f", false);
      case 'H':
        return put_set("0-9A-Fa-f", true);
      case 'v':
        return put_set("\\x{0B}", false);
      case 'u': {
        const std::string_view digits = in_.substr(std::min(at_ + 2, in_.size())).substr(0, 4);
        if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
          refuse("\\u without four digits");
        }
        out_ += fmt::format("\\x{{{}}}", digits);
        at_ += 6;
        return;
      }
      case 'b':
      case 'B':
        if (!in_set) refuse("a word boundary");
        [[fallthrough]];
      default:
        if (std::string_view("QECgkKNGXRyYO").find(c) != std::string_view::npos) refuse(fmt::format("\\{}", c));
        size_t end = std::min(at_ + 2, in_.size());
        if ((c == 'p' || c == 'P' || c == 'x') && peek(2) == '{') {
          end = in_.find('}', at_);
          if (end == std::string_view::npos) refuse("an unfinished { }");
          ++end;
        }
        out_.append(in_, at_, end - at_);
        at_ = end;
    }
  }

  std::string_view in_;
  const std::string& origin_;
  size_t at_ = 0;
  size_t atom_ = 0;             // where in out_ the item starts that a quantifier would apply to
  std::vector<size_t> groups_;  // where in out_ each open group starts
  std::string out_;
};

// What matching needs besides the pattern; one per thread serves all patterns.
struct MatchState {
  MatchState()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)) {
    CHECK(data && context && stack, "memory for PCRE2");
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kDepthLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

class RegexSplitter final : public Splitter {
 public:
  RegexSplitter(const std::string& pattern, const std::string& origin) {
    if (pattern.size() > kPatternLimit) {
      fail(Code::kBadModel,
           fmt::format("{}: a pattern may have {} bytes, got {}", origin, kPatternLimit, pattern.size()));
    }
    const std::string text = pcre2_pattern(pattern, origin);
    int code = 0;
    PCRE2_SIZE at = 0;
    // Ruby's ^ and $ are always those of lines.
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
    CHECK(context, "memory for PCRE2");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!code_) {
      fail(Code::kBadModel, fmt::format("{}: the pattern must be one that PCRE2 can run, got {} at byte {} of {}",
                                        origin, pcre2_message(code), at, text));
    }
    // Without JIT (not built in, or a pattern it does not take) PCRE2 interprets: slower, same matches.
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~RegexSplitter() override { pcre2_code_free(code_); }
  std::string_view method() const override { return "pcre2"; }

  void find(std::string_view text, std::vector<Piece>& matches) const override {
    thread_local MatchState state;
    PCRE2_SIZE at = 0, last_end = PCRE2_UNSET;
    while (at <= text.size()) {
      // NO_UTF_CHECK: the text was checked once; else every match checks the rest of it again.
      const int n = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                                state.data, state.context);
      if (n == PCRE2_ERROR_NOMATCH) return;
      if (n < 0) {
        fail(Code::kInvalidRequest, fmt::format("text: the tokenizer's pattern must split it, got {} at byte {} of {}",
                                                pcre2_message(n), at, text.size()));
      }
      const PCRE2_SIZE* found = pcre2_get_ovector_pointer(state.data);
      const PCRE2_SIZE begin = found[0], end = found[1];
      if (end == begin && end == last_end) {  // an empty match right behind a match does not count
        if (at == text.size()) return;
        at += unicode::decode(text.data() + at).bytes;
        continue;
      }
      matches.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      at = last_end = end;
    }
  }

 private:
  pcre2_code* code_ = nullptr;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const std::string& origin) {
  return Rewriter(pattern, origin).run();
}

std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, const std::string& origin) {
  return std::make_unique<RegexSplitter>(pattern, origin);
}

}  // namespace mettle

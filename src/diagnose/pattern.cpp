#include "diagnose/pattern.h"

#include <fmt/format.h>

#include <cctype>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace mettle::diagnose {
namespace {

constexpr uint32_t kMatchLimit = 200'000;

// Length of the group, class or escape that starts at `i`, or 1.
size_t item_length(std::string_view s, size_t i) {
  if (s[i] == '\\') return std::min<size_t>(2, s.size() - i);
  if (s[i] == '[') {
    size_t j = i + 1;
    if (j < s.size() && s[j] == '^') ++j;
    if (j < s.size() && s[j] == ']') ++j;
    while (j < s.size() && s[j] != ']') j += s[j] == '\\' ? 2 : 1;
    return std::min(j + 1, s.size()) - i;
  }
  if (s[i] != '(') return 1;
  size_t j = i + 1;
  while (j < s.size() && s[j] != ')') j += item_length(s, j);
  return std::min(j + 1, s.size()) - i;
}

}  // namespace

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, pcre2_code_free};
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match{nullptr, pcre2_match_data_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context{nullptr, pcre2_match_context_free};
};

Pattern::Pattern(const std::string& source) {
  auto made = std::make_shared<Compiled>();
  int error = 0;
  PCRE2_SIZE where = 0;
  made->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), 0, &error, &where, nullptr));
  if (made->code == nullptr) {
    unsigned char text[120];
    pcre2_get_error_message(error, text, sizeof text);
    fail(Code::kInternal, fmt::format("pattern {}: must be a regular expression, at byte {}: {}", source, where,
                                      reinterpret_cast<const char*>(text)));
  }
  pcre2_jit_compile(made->code.get(), PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets
  made->match.reset(pcre2_match_data_create_from_pattern(made->code.get(), nullptr));
  made->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(made->context.get(), kMatchLimit);
  compiled_ = std::move(made);
}

bool Pattern::search(std::string_view text, std::vector<std::string_view>* groups) const {
  if (groups != nullptr) groups->clear();
  if (compiled_ == nullptr) return false;
  const int n = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                            compiled_->match.get(), compiled_->context.get());
  if (n <= 0) return false;
  if (groups == nullptr) return true;
  const PCRE2_SIZE* at = pcre2_get_ovector_pointer(compiled_->match.get());
  const uint32_t count = pcre2_get_ovector_count(compiled_->match.get());
  for (uint32_t i = 0; i < count; ++i) {
    const bool took_part = static_cast<int>(i) < n && at[2 * i] != PCRE2_UNSET && at[2 * i] <= at[2 * i + 1];
    groups->push_back(took_part ? text.substr(at[2 * i], at[2 * i + 1] - at[2 * i]) : std::string_view());
  }
  return true;
}

std::string Pattern::required_literal(std::string_view source) {
  std::string best, run;
  const auto end_run = [&] {
    if (run.size() > best.size()) best = run;
    run.clear();
  };
  for (size_t i = 0; i < source.size();) {
    const size_t length = item_length(source, i);
    const char c = source[i];
    if (c == '|') return {};  // a choice at the top promises nothing
    const char next = i + length < source.size() ? source[i + length] : '\0';
    const bool optional = next == '?' || next == '*' || next == '{';
    const bool escaped_literal = c == '\\' && length == 2 && std::ispunct(static_cast<unsigned char>(source[i + 1]));
    const bool literal =
        escaped_literal || (length == 1 && std::string_view(".^$*+?{}()[]\\").find(c) == std::string_view::npos);
    if (literal && !optional) {
      run += static_cast<char>(std::tolower(static_cast<unsigned char>(escaped_literal ? source[i + 1] : c)));
    }
    if (!literal || optional || next == '+') end_run();
    i += length;
    if (i < source.size() && source[i] == '{') {  // the count itself is no text
      const size_t close = source.find('}', i);
      i = close == std::string_view::npos ? source.size() : close + 1;
    }
  }
  end_run();
  return best;
}

}  // namespace mettle::diagnose

#include "checkpoint/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"

namespace mettle {
namespace {

constexpr uint32_t kMaxSteps = 10'000;
constexpr size_t kMaxPattern = 4096;

// The set at glob[at] == '[': whether it holds c; `at` moves behind the ']'. A '[' without ']' is itself.
bool set_holds(std::string_view glob, size_t& at, char c) {
  size_t i = at + 1;
  const bool negated = i < glob.size() && (glob[i] == '!' || glob[i] == '^');
  if (negated) ++i;
  const size_t close = glob.find(']', i + 1);
  if (i >= glob.size() || close == std::string_view::npos) {
    ++at;
    return c == '[';
  }
  bool held = false;
  for (; i < close; ++i) {
    if (i + 2 < close && glob[i + 1] == '-') {
      held |= glob[i] <= c && c <= glob[i + 2];
      i += 2;
    } else {
      held |= glob[i] == c;
    }
  }
  at = close + 1;
  return held != negated;
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view text) {
  // Only the last star can be tried again, so time is at most |glob| * |text|.
  size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
      continue;
    }
    if (g < glob.size()) {
      size_t next = g + 1;
      const bool one =
          glob[g] == '?' || (glob[g] == '[' ? (next = g, set_holds(glob, next, text[t])) : glob[g] == text[t]);
      if (one) {
        g = next;
        ++t;
        continue;
      }
    }
    if (star == std::string_view::npos) return false;
    g = star + 1;
    t = ++resume;
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

std::string_view without_model_prefix(std::string_view module) {
  for (const std::string_view prefix : {"model.language_model.", "language_model.model.", "language_model.", "model."})
    if (module.starts_with(prefix)) return module.substr(prefix.size());
  return module;
}

struct NamePattern::Regex {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  ~Regex() {
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  bool matches(std::string_view text, const std::string& pattern) const {
    const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match, context);
    if (rc >= 0) return true;
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    fail(Code::kBadModel,
         fmt::format("quantization_config: pattern \"{}\" takes too long on \"{}\" (error {})", pattern, text, rc));
  }
};

NamePattern::NamePattern(std::string text, const std::string& where) : text_(std::move(text)) {
  if (text_.empty() || text_.size() > kMaxPattern)
    fail(Code::kBadModel,
         fmt::format("{}: a pattern must have 1 to {} bytes, has {}", where, kMaxPattern, text_.size()));
  if (!text_.starts_with("re:")) {
    literal_ = without_model_prefix(text_).find_first_of("*?[");
    return;
  }
  regex_ = std::make_unique<Regex>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  regex_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text_.data() + 3), text_.size() - 3,
                               PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (regex_->code == nullptr) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof message);
    fail(Code::kBadModel, fmt::format("{}: \"{}\" is not a regular expression: {} at {}", where, text_,
                                      reinterpret_cast<const char*>(message), offset));
  }
  regex_->match = pcre2_match_data_create_from_pattern(regex_->code, nullptr);
  regex_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(regex_->context, kMaxSteps);
  pcre2_set_heap_limit(regex_->context, 4096);  // KiB
}

NamePattern::NamePattern(NamePattern&&) noexcept = default;
NamePattern& NamePattern::operator=(NamePattern&&) noexcept = default;
NamePattern::~NamePattern() = default;

bool NamePattern::matches(std::string_view module) const {
  const std::string_view name = without_model_prefix(module);
  if (regex_ != nullptr)
    return regex_->matches(module, text_) || (name.size() != module.size() && regex_->matches(name, text_)) ||
           regex_->matches("model." + std::string(name), text_);
  const std::string_view stem = without_model_prefix(text_);
  if (literal_ == std::string_view::npos) {
    if (name.size() == stem.size()) return name == stem;
    if (name.size() < stem.size()) return false;
    return (name.starts_with(stem) && name[stem.size()] == '.') ||
           (name.ends_with(stem) && name[name.size() - stem.size() - 1] == '.');
  }
  return name.compare(0, literal_, stem, 0, literal_) == 0 && glob_matches(stem, name);
}

}  // namespace mettle

#include "sweep/detectors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace mettle::sweep {
namespace {

constexpr size_t kFewestMarks = 8;           // of one mark, before it is called garbage
constexpr size_t kFewestRepeats = 4;         // of a unit
constexpr size_t kFewestRepeatedBytes = 24;  // that the repeats fill
constexpr size_t kLongestText = 1 << 14;     // of the end of a text

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string in_quotes(std::string_view text, size_t limit) {
  size_t end = std::min(text.size(), limit);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  std::string out(text.substr(0, end));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = ' ';
  return "\"" + out + (end < text.size() ? " ..." : "") + "\"";
}

std::optional<Finding> find_garbage(std::string_view text) {
  std::array<size_t, 256> seen = {};
  size_t visible = 0, strange = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (std::isspace(c) != 0) continue;
    ++visible;
    ++seen[c];
    if (c < 32 || c == 127) ++strange;
    if (text.substr(i).starts_with("\xEF\xBF\xBD")) strange += 3;  // U+FFFD: bytes that were no text
  }
  const auto most = std::max_element(seen.begin(), seen.end());
  const auto mark = static_cast<unsigned char>(most - seen.begin());
  if (visible >= kFewestMarks && *most * 10 >= visible * 9 && mark < 128 && std::ispunct(mark) != 0)
    return Finding{"NAN_LOGITS", fmt::format("the answer is {} of {} visible bytes \"{}\": the token that a row of NaN "
                                             "logits picks: {}",
                                             *most, visible, static_cast<char>(mark), in_quotes(text))};
  if (visible > 0 && strange * 10 > visible)
    return Finding{"GARBAGE", fmt::format("{} of {} visible bytes of the answer are no text: {}", strange, visible,
                                          in_quotes(text))};
  return std::nullopt;
}

std::optional<Finding> find_repetition(std::string_view text) {
  text = trimmed(text);
  if (text.size() > kLongestText) text.remove_prefix(text.size() - kLongestText);
  if (text.size() < kFewestRepeatedBytes) return std::nullopt;
  // The shortest unit whose repeats fill the end of the text.
  for (size_t unit = 1; unit * kFewestRepeats <= text.size(); ++unit) {
    size_t same = 0;  // bytes at the end that equal those one unit before
    while (same + unit < text.size() && text[text.size() - 1 - same] == text[text.size() - 1 - same - unit]) ++same;
    const size_t filled = same + unit;
    if (filled < unit * kFewestRepeats || filled < kFewestRepeatedBytes || filled * 2 < text.size()) continue;
    return Finding{"REPEATS",
                   fmt::format("the last {} of {} bytes of the answer are {} again and again, {} times", filled,
                               text.size(), in_quotes(text.substr(text.size() - unit)), filled / unit)};
  }
  return std::nullopt;
}

std::optional<Finding> find_bad_logprobs(const std::vector<std::optional<double>>& logprobs) {
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const std::optional<double>& value = logprobs[i];
    if (value && std::isfinite(*value) && *value <= 1e-4) continue;
    const std::string what = !value                  ? "no number (NaN or null)"
                             : std::isfinite(*value) ? fmt::format("{}, above 0", *value)
                                                     : fmt::format("{}", *value);
    const char* place = i == 0 ? "the first one, from the prompt's own step" : "in decode; the prompt's step was fine";
    return Finding{"NONFINITE_LOGPROB", fmt::format("the log-probability of token {} of {} is {} ({})", i + 1,
                                                    logprobs.size(), what, place)};
  }
  return std::nullopt;
}

std::optional<Finding> find_wrong_answer(std::string_view text, const CanaryPrompt& expected) {
  const std::string_view have = trimmed(text), want = trimmed(expected.answer);
  const bool right = expected.match == Match::kExact    ? have == want
                     : expected.match == Match::kPrefix ? have.starts_with(want)
                                                        : have.find(want) != std::string_view::npos;
  if (right) return std::nullopt;
  const char* how = expected.match == Match::kExact    ? "be"
                    : expected.match == Match::kPrefix ? "begin with"
                                                       : "contain";
  return Finding{"WRONG_ANSWER", fmt::format("the answer to {} must {} {}, is {}", in_quotes(expected.prompt), how,
                                             in_quotes(want), in_quotes(have))};
}

double agreement(std::string_view text, std::string_view reference) {
  text = trimmed(text);
  reference = trimmed(reference);
  if (reference.empty()) return text.empty() ? 1 : 0;
  const auto differs = std::mismatch(text.begin(), text.end(), reference.begin(), reference.end());
  return static_cast<double>(differs.first - text.begin()) / static_cast<double>(reference.size());
}

std::string without_nan(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  bool in_string = false;
  for (size_t i = 0; i < json.size();) {
    const char c = json[i];
    if (in_string && c == '\\' && i + 1 < json.size()) {
      out += json.substr(i, 2);
      i += 2;
      continue;
    }
    if (c == '"') in_string = !in_string;
    size_t skip = 0;
    if (!in_string)
      for (const std::string_view word : {"-Infinity", "Infinity", "-NaN", "NaN"})
        if (json.substr(i).starts_with(word)) {
          skip = word.size();
          break;
        }
    if (skip > 0) {
      out += "null";
      i += skip;
    } else {
      out += c;
      ++i;
    }
  }
  return out;
}

}  // namespace mettle::sweep

// What is wrong with an answer, seen from its text and its log-probabilities alone.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sweep/plan.h"

namespace mettle::sweep {

struct Finding {
  std::string
      cause;  // NAN_LOGITS, NONFINITE_LOGPROB (classes of diagnose); GARBAGE, REPEATS, EMPTY_ANSWER, WRONG_ANSWER
  std::string sentence;
};

// "!!!!": one mark and nothing else, which is the token that a row of NaN logits picks; bytes that are no text.
std::optional<Finding> find_garbage(std::string_view text);
// A unit that comes again and again until the answer ends.
std::optional<Finding> find_repetition(std::string_view text);
// A number for each token; nothing where the server wrote null or no number.
std::optional<Finding> find_bad_logprobs(const std::vector<std::optional<double>>& logprobs);
// Whether the answer is the expected one.
std::optional<Finding> find_wrong_answer(std::string_view text, const CanaryPrompt& expected);
// The share of the reference's answer that the start of this one agrees with, from 0 to 1.
double agreement(std::string_view text, std::string_view reference);

// JSON as Python's json module writes it: NaN, Infinity and -Infinity outside of strings become null.
std::string without_nan(std::string_view json);

// For people: control bytes shown as spaces, cut at a border of characters, in quotes.
std::string in_quotes(std::string_view text, size_t limit = 60);

}  // namespace mettle::sweep

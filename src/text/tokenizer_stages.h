// The normalizer and the pre-tokenizer of a tokenizer.json as lists of steps.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/splitter.h"
#include "text/tokenizer_json.h"
#include "text/unicode_normalize.h"

namespace mettle {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  explicit Normalizer(const JsonValue& json);
  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  struct Step {
    enum class Kind { kForm, kPrepend, kReplace } kind;
    unicode::Form form = unicode::Form::kNfc;
    std::unique_ptr<Splitter> pattern;  // kReplace
    std::string text;                   // what to put before, or in place of a match
  };
  void add(const JsonValue& json, int depth);
  std::vector<Step> steps_;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(const JsonValue& json);

  // Buffers of one call; `pieces` is the result: views of the text, or of `owned` where a space was put before.
  struct Buffers {
    std::vector<std::string_view> pieces, next;
    std::vector<Piece> matches;
    std::deque<std::string> owned;
  };
  void split(std::string_view text, Buffers& buffers) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    std::unique_ptr<Splitter> splitter;  // null: put a space before each piece that has none
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  void add(const JsonValue& json, int depth);
  static void cut(const Step& step, std::string_view text, Buffers& buffers);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace mettle

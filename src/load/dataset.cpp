#include "load/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "load/dataset_file.h"

namespace mettle {
namespace {

constexpr int kMostRequests = 1'000'000, kMostTokens = 1 << 20;
constexpr int64_t kMostTokensInAll = int64_t{1} << 27;

// Short and common, so that most vocabularies have them as one token each.
constexpr const char* kWords[] = {
    "the",   "of",    "and",   "to",    "in",     "is",    "that",  "for",     "it",    "as",    "was",   "with",
    "be",    "by",    "on",    "not",   "he",     "his",   "but",   "at",      "are",   "this",  "have",  "from",
    "or",    "had",   "an",    "they",  "which",  "one",   "you",   "were",    "all",   "her",   "she",   "there",
    "would", "their", "we",    "him",   "been",   "has",   "when",  "who",     "will",  "no",    "more",  "if",
    "out",   "so",    "up",    "said",  "what",   "its",   "about", "than",    "into",  "them",  "can",   "only",
    "other", "time",  "new",   "some",  "could",  "these", "two",   "may",     "first", "then",  "do",    "any",
    "like",  "my",    "now",   "over",  "such",   "our",   "man",   "me",      "even",  "most",  "made",  "after",
    "also",  "well",  "many",  "must",  "before", "back",  "see",   "through", "way",   "where", "get",   "much",
    "go",    "good",  "your",  "know",  "down",   "work",  "life",  "long",    "us",    "world", "still", "own",
    "day",   "here",  "house", "water", "light",  "small", "great", "hand",    "right", "place", "think", "three"};

// Grows a text word by word and knows how many tokens it has. Splitters of byte-level vocabularies cut before a
// space, so what a word adds does not depend on the words before it; the whole is encoded at the end all the same.
class Writer {
 public:
  explicit Writer(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {
    if (tokenizer_ == nullptr) return;
    for (const char* word : kWords) {
      cost_.push_back(count(std::string(" ") + word));
      first_cost_.push_back(count(word));
    }
  }

  // Appends what adds `tokens` tokens.
  void append(std::string& text, int tokens, std::mt19937_64& random) const {
    if (tokenizer_ == nullptr) {
      for (int i = 0; i < tokens; ++i) add(text, random() % std::size(kWords));
      return;
    }
    const int wanted = count(text) + tokens;
    int missing = tokens;
    while (missing > 0) {
      const std::vector<int>& cost = text.empty() ? first_cost_ : cost_;
      size_t word = random() % std::size(kWords);
      if (cost[word] > missing) word = static_cast<size_t>(std::min_element(cost.begin(), cost.end()) - cost.begin());
      if (cost[word] > missing) break;
      missing -= cost[word];
      add(text, word);
    }
    correct(text, wanted);
  }

  int count(const std::string& text) const {
    return static_cast<int>(tokenizer_->encode(text, AddedTokens::kAsText).size());
  }
  bool counts() const { return tokenizer_ != nullptr; }

 private:
  static void add(std::string& text, size_t word) {
    if (!text.empty()) text += ' ';
    text += kWords[word];
  }

  // For vocabularies with words of several tokens only: letters until it fits.
  void correct(std::string& text, int wanted) const {
    for (int tries = 0, have = count(text); have != wanted && tries < 64; ++tries, have = count(text)) {
      if (have > wanted) {
        text.pop_back();
        continue;
      }
      for (const char* piece : {".", ",", "!", "x", "7", " a", "\n"}) {
        const int with = count(text + piece);
        if (with <= have || with > wanted) continue;
        text += piece;
        break;
      }
    }
  }

  const Tokenizer* tokenizer_;
  std::vector<int> cost_, first_cost_;
};

void check(const DatasetOptions& o) {
  const auto need = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      fail(Code::kInvalidRequest, fmt::format("{}: must be in {}..{}, got {}", name, least, most, value));
  };
  need("count", o.count, 1, kMostRequests);
  need("input_tokens", o.input_tokens, 1, kMostTokens);
  need("output_tokens", o.output_tokens, 1, kMostTokens);
  need("prefix_tokens", o.prefix_tokens, 1, kMostTokens);
  need("prefixes", o.prefixes, 1, kMostRequests);
  need("turns", o.turns, 1, 1000);
  if (!(o.range >= 0 && o.range < 1))
    fail(Code::kInvalidRequest, fmt::format("range: must be in 0..1 without 1, got {}", o.range));
  if (o.kind == DatasetKind::kFile) return;
  const int64_t tokens =
      int64_t{o.count} * (o.input_tokens + (o.kind == DatasetKind::kSharedPrefix ? o.prefix_tokens : 0));
  if (tokens > kMostTokensInAll)
    fail(Code::kInvalidRequest, fmt::format("dataset: must have at most {} tokens in all, {} requests would have {}",
                                            kMostTokensInAll, o.count, tokens));
}

int drawn(int length, double range, std::mt19937_64& random) {
  const int low = std::max(1, static_cast<int>(std::lround(length * (1 - range))));
  const int high = std::max(low, static_cast<int>(std::lround(length * (1 + range))));
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}

}  // namespace

std::string random_text(int tokens, uint64_t seed, const Tokenizer* tokenizer) {
  std::mt19937_64 random(seed);
  std::string text;
  Writer(tokenizer).append(text, tokens, random);
  return text;
}

std::vector<LoadPrompt> make_dataset(const DatasetOptions& o) {
  check(o);
  if (o.kind == DatasetKind::kFile) return read_dataset(o);
  const Writer writer(o.tokenizer);
  std::mt19937_64 random(o.seed);
  std::vector<std::string> prefixes;
  if (o.kind == DatasetKind::kSharedPrefix) {
    prefixes.resize(static_cast<size_t>(std::min(o.prefixes, o.count)));
    for (std::string& prefix : prefixes) writer.append(prefix, o.prefix_tokens, random);
  }
  std::vector<LoadPrompt> prompts(static_cast<size_t>(o.count));
  for (size_t i = 0; i < prompts.size(); ++i) {
    LoadPrompt& prompt = prompts[i];
    if (!prefixes.empty()) prompt.text = prefixes[i % prefixes.size()];
    writer.append(prompt.text, drawn(o.input_tokens, o.range, random), random);
    if (writer.counts()) prompt.input_tokens = writer.count(prompt.text);
    prompt.output_tokens = drawn(o.output_tokens, o.range, random);
    if (o.kind == DatasetKind::kMultiTurn) prompt.conversation = static_cast<int>(i) / o.turns;
  }
  return prompts;
}

}  // namespace mettle

// What a load is made of: random texts, texts with a common beginning, conversations, a file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "load/load.h"
#include "text/tokenizer.h"

namespace mettle {

enum class DatasetKind { kRandom, kSharedPrefix, kMultiTurn, kFile };

struct DatasetOptions {
  DatasetKind kind = DatasetKind::kRandom;
  int count = 1;  // requests
  int input_tokens = 1024, output_tokens = 128;
  // Lengths are drawn evenly from length * (1 - range) to length * (1 + range).
  double range = 0;
  int prefix_tokens = 512, prefixes = 1;  // kSharedPrefix: of which a request has one, before input_tokens of its own
  int turns = 4;                          // kMultiTurn: each has input_tokens of its own
  std::string path;                       // kFile
  uint64_t seed = 0;
  const Tokenizer* tokenizer = nullptr;  // without one a word is taken for a token, and no input_tokens are given
};

// The same options give the same prompts; requests of a file come in its order, again from the start when it has too
// few. Files: JSON lines or one JSON array; entries {"prompt", "output_tokens"} or the first question and answer of
// {"conversations": [{"from", "value"}]} or {"messages": [{"role", "content"}]}; entries without a question are left
// out. Fails with kInvalidRequest for options that cannot be, kBadModel for a file: not JSON (with the line or
// entry), nothing in it, more than 2 GiB, an entry over 16 MiB or nested deeper than 32.
std::vector<LoadPrompt> make_dataset(const DatasetOptions& options);

// Text of plain English words that encodes to `tokens` tokens, or the nearest it can come to. Also without a
// tokenizer: so many words.
std::string random_text(int tokens, uint64_t seed, const Tokenizer* tokenizer);

}  // namespace mettle

// What a Tokenizer is made of. tokenizer_load.cpp fills it, tokenizer.cpp uses it.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_stages.h"

namespace mettle {

struct TokenizerParts {
  TokenizerParts(std::string_view json, const std::string& origin);  // tokenizer_load.cpp
  TokenizerParts(const TokenizerParts&) = delete;                    // the models point to `tokens`
  TokenizerParts& operator=(const TokenizerParts&) = delete;

  TokenTable tokens;
  std::vector<uint8_t> special;  // by id
  std::unordered_map<std::string, int32_t> added_ids;
  AddedMatcher added_raw, added_normalized;
  Normalizer normalizer;
  std::optional<PreTokenizer> pre_tokenizer;
  std::optional<Bpe> model;
  std::optional<Bpe> model_text;  // never makes an added token; only where `model` could
};

struct Tokenizer::Impl : TokenizerParts {
  using TokenizerParts::TokenizerParts;

  // Buffers of one call of encode, kept for the next.
  struct Scratch {
    BpeScratch bpe;
    PreTokenizer::Buffers pre;
    std::vector<AddedMatcher::Segment> segments, inner;
  };
  std::unique_ptr<Scratch> take() const;
  void give_back(std::unique_ptr<Scratch> scratch) const;
  void encode_plain(std::string_view normalized, const Bpe& bpe, Scratch& scratch, std::vector<int32_t>& ids) const;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> scratches;
};

}  // namespace mettle

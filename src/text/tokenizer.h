// Byte-level BPE from a Hugging Face tokenizer.json: added tokens, normalizer, pre-tokenizer, merges, decoder.
// Thread-safe after construction. The file's post-processor is not applied (a chat prompt carries its own BOS), nor are
// its truncation and padding.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

// Whether the text of added tokens (<|im_start|>, <think>, ...) becomes their ids. Text that a user wrote is untrusted
// and is encoded kAsText; a rendered chat template is encoded kAsTokens. As text no id of an added token comes out, not
// by merges either, unless the token is a single byte of the vocabulary.
enum class AddedTokens { kAsTokens, kAsText };

class Tokenizer {
 public:
  // Fails with kBadModel (what, where) for a file that is not a byte-level BPE tokenizer, has no merges, refers to
  // tokens that do not exist, or uses a component that is not known (its name is in the message). Files may have 64
  // MiB, ids go up to 2^22, added tokens have up to 256 bytes.
  static Tokenizer from_file(const std::string& path);
  static Tokenizer from_json(std::string_view json, const std::string& origin);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // text must be UTF-8 of at most 64 MiB: kInvalidRequest, with the byte offset, otherwise.
  std::vector<int32_t> encode(std::string_view text, AddedTokens added = AddedTokens::kAsTokens) const;
  // Ids out of range are skipped. Bytes that are no UTF-8 become U+FFFD, as the reference library prints them.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  int32_t vocab_size() const;                                       // highest id + 1, added tokens included
  std::optional<int32_t> id_of(std::string_view token_text) const;  // added token, or the bytes of one vocabulary entry
  std::string_view bytes_of(int32_t id) const;  // raw bytes it stands for; empty when there is no such id
  bool is_special(int32_t id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns ids into text as they come, never emitting half a character: bytes wait until their character is complete or
// cannot become one (then U+FFFD). The concatenation of all pushes and finish() equals Tokenizer::decode of all ids.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id);
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace mettle

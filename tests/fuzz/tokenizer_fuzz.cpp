// A tokenizer.json and a text for it, with a zero byte between. Without JSON the text goes to a small built-in
// tokenizer. What loads must keep the promises of tokenizer.h for any text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

std::string built_in() {
  std::string json =
      R"({"added_tokens":[{"id":300,"content":"<|end|>","special":true},{"id":301,"content":"<x>",)"
      R"("lstrip":true,"rstrip":true},{"id":302,"content":"cd","single_word":true,"normalized":true}],)"
      R"("normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
      R"("pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated"},{"type":"Split","pattern":{"Regex":)"
      R"("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated"},{"type":"ByteLevel",)"
      R"("add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},"model":{"vocab":{)";
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b < 127) || (b >= 161 && b != 173);
    std::string key;
    if (b == '"' || b == '\\') key = "\\";
    mettle::unicode::append_utf8(key, printable ? b : next++);
    json += "\"" + key + "\":" + std::to_string(b) + ",";
  }
  return json + R"("ab":256,"abc":257,"aba":258,"bc":259},"merges":["a b",["ab","c"],["ab","a"],"b c"]}})";
}

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const mettle::Tokenizer& tokenizer, std::string_view bytes) {
  using mettle::AddedTokens;
  std::string text;
  mettle::unicode::append_lossy(bytes.substr(0, 2000), /*last=*/true, text);
  for (const AddedTokens added : {AddedTokens::kAsTokens, AddedTokens::kAsText}) {
    const auto ids = tokenizer.encode(text, added);
    for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
    for (const bool skip_special : {false, true}) {
      mettle::Detokenizer detokenizer(tokenizer, skip_special);
      std::string parts;
      for (const int32_t id : ids) parts += detokenizer.push(id);
      parts += detokenizer.finish();
      require(parts == tokenizer.decode(ids, skip_special));
      require(!mettle::unicode::invalid_utf8_at(parts));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const mettle::Tokenizer fixed = mettle::Tokenizer::from_json(built_in(), "built-in");
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  const std::string_view text = input.substr(std::min(zero + 1, size));
  try {
    if (zero == 0) {
      use(fixed, text);
    } else {
      use(mettle::Tokenizer::from_json(input.substr(0, zero), "tokenizer.json"), text);
    }
  } catch (const mettle::Error& e) {
    require(e.code == mettle::Code::kBadModel || e.code == mettle::Code::kInvalidRequest);
    require(!e.message.empty());
  }
  return 0;
}

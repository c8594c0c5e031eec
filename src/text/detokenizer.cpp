#include "text/tokenizer.h"
#include "text/unicode.h"

namespace mettle {

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  pending_.append(tokenizer_->bytes_of(id));
  pending_.erase(0, unicode::append_lossy(pending_, /*last=*/false, text));
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  unicode::append_lossy(pending_, /*last=*/true, text);
  pending_.clear();
  return text;
}

}  // namespace mettle

#include "text/tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

namespace mettle {
namespace {

constexpr size_t kTextLimit = 64 << 20;  // its pieces take up to 24 times as much
constexpr size_t kKeptPieces = 1 << 20;  // buffers of larger texts are not kept

}  // namespace

std::unique_ptr<Tokenizer::Impl::Scratch> Tokenizer::Impl::take() const {
  {
    const std::lock_guard lock(mutex);
    if (!scratches.empty()) {
      auto scratch = std::move(scratches.back());
      scratches.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::Impl::give_back(std::unique_ptr<Scratch> scratch) const {
  if (scratch->pre.pieces.capacity() + scratch->pre.matches.capacity() > kKeptPieces) scratch->pre = {};
  const std::lock_guard lock(mutex);
  scratches.push_back(std::move(scratch));
}

void Tokenizer::Impl::encode_plain(std::string_view normalized, const Bpe& bpe, Scratch& scratch,
                                   std::vector<int32_t>& ids) const {
  pre_tokenizer->split(normalized, scratch.pre);
  for (const std::string_view piece : scratch.pre.pieces) bpe.encode(piece, scratch.bpe, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  const Impl& t = *impl_;
  if (text.size() > kTextLimit) {
    fail(Code::kInvalidRequest, fmt::format("text: may have {} bytes, got {}", kTextLimit, text.size()));
  }
  if (const auto at = unicode::invalid_utf8_at(text)) {
    fail(Code::kInvalidRequest,
         fmt::format("text: must be UTF-8, got byte 0x{:02X} at offset {}", static_cast<uint8_t>(text[*at]), *at));
  }
  std::vector<int32_t> ids;
  std::unique_ptr<Impl::Scratch> scratch = t.take();
  const auto normalized = [&](std::string_view part, std::string& storage) {
    if (t.normalizer.empty()) return part;
    storage = t.normalizer.apply(part);
    return std::string_view(storage);
  };
  std::string storage;
  if (added == AddedTokens::kAsText) {
    const Bpe& model = t.model_text ? *t.model_text : *t.model;
    t.encode_plain(normalized(text, storage), model, *scratch, ids);
  } else {
    scratch->segments.clear();
    t.added_raw.split(text, scratch->segments);
    for (const auto& outer : scratch->segments) {
      if (outer.id >= 0) {
        ids.push_back(outer.id);
        continue;
      }
      const std::string_view part = normalized(text.substr(outer.begin, outer.end - outer.begin), storage);
      scratch->inner.clear();
      t.added_normalized.split(part, scratch->inner);
      for (const auto& inner : scratch->inner) {
        if (inner.id >= 0) {
          ids.push_back(inner.id);
        } else {
          t.encode_plain(part.substr(inner.begin, inner.end - inner.begin), *t.model, *scratch, ids);
        }
      }
    }
  }
  t.give_back(std::move(scratch));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes.append(bytes_of(id));
  }
  unicode::append_lossy(bytes, /*last=*/true, text);
  return text;
}

int32_t Tokenizer::vocab_size() const { return impl_->tokens.size(); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token_text) const {
  if (const auto found = impl_->added_ids.find(std::string(token_text)); found != impl_->added_ids.end()) {
    return found->second;
  }
  const int32_t id = impl_->tokens.find(token_text);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::bytes_of(int32_t id) const { return impl_->tokens.bytes(id); }

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->special[id]; }

}  // namespace mettle

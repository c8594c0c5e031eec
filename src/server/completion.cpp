#include "server/completion.h"

#include <algorithm>

namespace mettle {
namespace {

void append(ReplyDelta& to, ReplyDelta&& from) {
  to.reasoning += from.reasoning;
  to.content += from.content;
  to.tool_calls.insert(to.tool_calls.end(), std::make_move_iterator(from.tool_calls.begin()),
                       std::make_move_iterator(from.tool_calls.end()));
}

// Bytes at the end of `text` that are a proper beginning of `stop`.
size_t possible_start(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

Completion::Completion(const Tokenizer& tokenizer, CompletionOptions options)
    : options_(std::move(options)), detokenizer_(tokenizer, options_.skip_special) {
  if (options_.reply) parser_.emplace(*options_.reply);
}

CompletionDelta Completion::push(const TokenEvent& event) {
  CompletionDelta delta;
  if (finished_) return delta;
  if (event.token >= 0) {
    ++tokens_;
    if (options_.logprobs) held_logprobs_.push_back({event.token, event.logprob, event.top, emitted_ + held_.size()});
    take_text(detokenizer_.push(event.token), delta);
  }
  if (finished_ || event.finish == Finish::kNone) return delta;
  if (event.stop_token >= 0) ++tokens_;
  delta.error = event.error;
  take_text(detokenizer_.finish(), delta);
  if (!finished_) finish(event.finish, delta);
  return delta;
}

void Completion::take_text(std::string_view text, CompletionDelta& delta) {
  held_ += text;
  if (options_.stop.empty() || tokens_ <= options_.min_tokens) return emit(held_.size(), delta);
  size_t at = std::string::npos, keep = 0;
  for (const std::string& stop : options_.stop) {
    at = std::min(at, held_.find(stop));
    keep = std::max(keep, possible_start(held_, stop));
  }
  if (at == std::string::npos) return emit(held_.size() - keep, delta);
  held_.resize(at);
  stopped_by_text_ = true;
  // Tokens whose text begins in the stop string are not part of the answer.
  std::erase_if(held_logprobs_, [&](const TokenLogprob& p) { return p.text_offset >= emitted_ + at; });
  finish(Finish::kStop, delta);
}

// Gives out the first bytes of held_ and the log probabilities of the tokens that begin before their end.
void Completion::emit(size_t bytes, CompletionDelta& delta) {
  if (bytes > 0) {
    const std::string_view text = std::string_view(held_).substr(0, bytes);
    if (parser_)
      append(delta.reply, parser_->push(text));
    else
      delta.reply.content += text;
    held_.erase(0, bytes);
    emitted_ += bytes;
  }
  const auto end = std::find_if(held_logprobs_.begin(), held_logprobs_.end(), [&](const TokenLogprob& p) {
    return p.text_offset > emitted_ || (p.text_offset == emitted_ && !held_.empty());
  });
  std::move(held_logprobs_.begin(), end, std::back_inserter(delta.logprobs));
  held_logprobs_.erase(held_logprobs_.begin(), end);
}

void Completion::finish(Finish why, CompletionDelta& delta) {
  emit(held_.size(), delta);
  std::move(held_logprobs_.begin(), held_logprobs_.end(), std::back_inserter(delta.logprobs));
  held_logprobs_.clear();
  if (parser_) append(delta.reply, parser_->finish());
  delta.finish = why;
  finished_ = true;
}

}  // namespace mettle

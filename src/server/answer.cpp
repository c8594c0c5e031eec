#include "server/answer.h"

#include "base/log.h"
#include "server/api_error.h"

namespace mettle {

void Answer::begin(const std::shared_ptr<Exchange>& exchange, std::unique_ptr<Reply> reply, Delivery delivery,
                   Engine& engine, const Tokenizer& tokenizer, GenerationRequest request,
                   std::shared_ptr<Metrics> metrics, std::function<void(int)> on_status) {
  const auto answer = std::make_shared<Answer>(*exchange, std::move(reply), delivery, std::move(on_status));
  // The engine holds neither: it may outlast both.
  const std::weak_ptr<Exchange> weak_exchange = exchange;
  const std::weak_ptr<Answer> weak_answer = answer;
  const auto wake = [weak_exchange, weak_answer] {
    if (const auto live = weak_exchange.lock())
      live->post([weak_answer] {
        if (const auto self = weak_answer.lock()) self->advance();
      });
  };
  answer->generation_ = std::make_unique<Generation>(engine, tokenizer, std::move(request), wake, std::move(metrics));
  exchange->on_gone([answer] { answer->generation_.reset(); });
}

Usage Answer::usage() const { return {generation_->prompt_tokens(), generation_->completion_tokens()}; }

void Answer::advance() {
  if (!generation_) return;
  std::string chunks;
  for (ChoiceDelta& d : generation_->take()) {
    if (d.delta.finish == Finish::kError || d.delta.finish == Finish::kCancelled) {
      exchange_.write(chunks);
      return fail_with(d.delta);
    }
    // The status line waits for the first event, so that an early failure still gets its own status.
    if (delivery_ == Delivery::kStream && !streaming_) {
      exchange_.begin_stream("text/event-stream; charset=utf-8");
      streaming_ = true;
      on_status_(200);
    }
    if (delivery_ == Delivery::kStream)
      chunks += reply_->chunk(d);
    else
      reply_->add(std::move(d));
  }
  if (generation_->done()) {
    if (delivery_ == Delivery::kWhole) {
      on_status_(200);
      exchange_.respond({.body = reply_->body(usage())});
    } else {
      exchange_.write(chunks + reply_->last_chunk(usage()));
      exchange_.end();
    }
    generation_.reset();
    return;
  }
  exchange_.write(chunks);
}

void Answer::fail_with(const CompletionDelta& delta) {
  ApiError error{503, "the server is shutting down", {}, "shutting_down"};
  if (delta.finish == Finish::kError) {
    error = {500, "generation failed: " + delta.error, {}, "generation_failed"};
    log::error("server: generation failed: {}", delta.error);
  }
  if (streaming_) {
    exchange_.write("data: " + error_body(error) + "\n\n");
    exchange_.end();
  } else {
    on_status_(error.status);
    exchange_.respond(error_response(error));
  }
  generation_.reset();
}

}  // namespace mettle

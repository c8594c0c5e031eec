// One generation request on its way: deltas of the engine become a body or an event stream on the request's exchange.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "server/generation.h"
#include "server/http.h"
#include "server/openai_reply.h"

namespace mettle {

enum class Delivery { kWhole, kStream };

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(Exchange& exchange, std::unique_ptr<Reply> reply, Delivery delivery, std::function<void(int)> on_status)
      : exchange_(exchange), reply_(std::move(reply)), delivery_(delivery), on_status_(std::move(on_status)) {}

  // Submits; fails as Engine::submit does. From then on the exchange owns the answer, and a client that leaves cancels
  // it.
  static void begin(const std::shared_ptr<Exchange>& exchange, std::unique_ptr<Reply> reply, Delivery delivery,
                    Engine& engine, const Tokenizer& tokenizer, GenerationRequest request,
                    std::shared_ptr<Metrics> metrics, std::function<void(int status)> on_status);

 private:
  void advance();
  void fail_with(const CompletionDelta& delta);
  Usage usage() const;

  Exchange& exchange_;
  std::unique_ptr<Reply> reply_;
  const Delivery delivery_;
  std::function<void(int)> on_status_;
  std::unique_ptr<Generation> generation_;
  bool streaming_ = false;
};

}  // namespace mettle

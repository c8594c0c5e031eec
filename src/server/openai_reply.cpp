#include "server/openai_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

std::string random_id(std::string_view prefix) {
  thread_local std::mt19937_64 engine{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, engine(), engine() & 0xFFFFFFFF);
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string event(const Json& json) { return "data: " + dump(json) + "\n\n"; }

Json finish_reason(Finish finish, bool calls) {
  if (finish == Finish::kNone) return nullptr;
  if (finish == Finish::kLength) return "length";
  return calls ? "tool_calls" : "stop";
}

// JSON has no infinity; clients know this value as "never".
double finite(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

class ReplyBase : public Reply {
 public:
  ReplyBase(ReplyOptions options, std::string_view id_prefix)
      : options_(std::move(options)), id_(random_id(id_prefix)), created_(std::time(nullptr)) {}

  std::string last_chunk(const Usage& usage) override {
    std::string text;
    if (options_.include_usage) {
      Json chunk = envelope(chunk_object());
      chunk["choices"] = Json::array();
      chunk["usage"] = usage_json(usage);
      text = event(chunk);
    }
    return text + "data: [DONE]\n\n";
  }

  std::string body(const Usage& usage) override {
    Json body = envelope(body_object());
    body["choices"] = choices_json();
    body["usage"] = usage_json(usage);
    return dump(body);
  }

 protected:
  virtual const char* chunk_object() const = 0;
  virtual const char* body_object() const = 0;
  virtual Json choices_json() = 0;

  Json envelope(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", options_.model}};
  }
  std::string choice_event(Json choice) const {
    Json chunk = envelope(chunk_object());
    chunk["choices"] = Json::array({std::move(choice)});
    if (options_.include_usage) chunk["usage"] = nullptr;
    return event(chunk);
  }
  std::string token_text(int32_t id) const {
    return options_.tokenizer->decode(std::span<const int32_t>(&id, 1), false);
  }

  ReplyOptions options_;
  std::string id_;
  int64_t created_;
};

class ChatReply final : public ReplyBase {
 public:
  explicit ChatReply(ReplyOptions options) : ReplyBase(std::move(options), "chatcmpl-") {
    choices_.resize(static_cast<size_t>(options_.choices));
  }

  std::string chunk(const ChoiceDelta& d) override {
    Choice& choice = choices_[static_cast<size_t>(d.choice)];
    std::string text;
    if (!choice.begun) text += choice_event(chunk_choice(d.choice, {{"role", "assistant"}, {"content", ""}}));
    choice.begun = true;
    Json delta = Json::object();
    const ReplyDelta& reply = d.delta.reply;
    if (!reply.reasoning.empty()) delta["reasoning_content"] = reply.reasoning;
    if (!reply.content.empty()) delta["content"] = reply.content;
    for (const ToolCall& call : reply.tool_calls) {
      if (!takes_call(choice)) continue;
      Json json = {{"index", choice.calls}};
      json.update(call_json(call));
      delta["tool_calls"].push_back(std::move(json));
      ++choice.calls;
    }
    if (!delta.empty() || !d.delta.logprobs.empty()) {
      Json json = chunk_choice(d.choice, std::move(delta));
      json["logprobs"] = d.delta.logprobs.empty() ? Json(nullptr) : logprobs_json(d.delta.logprobs);
      text += choice_event(std::move(json));
    }
    if (d.delta.finish != Finish::kNone) {
      Json json = chunk_choice(d.choice, Json::object());
      json["finish_reason"] = finish_reason(d.delta.finish, choice.calls > 0);
      text += choice_event(std::move(json));
    }
    return text;
  }

  void add(ChoiceDelta&& d) override {
    Choice& choice = choices_[static_cast<size_t>(d.choice)];
    choice.reasoning += d.delta.reply.reasoning;
    choice.content += d.delta.reply.content;
    for (const ToolCall& call : d.delta.reply.tool_calls) {
      if (!takes_call(choice)) continue;
      choice.tool_calls.push_back(call_json(call));
      ++choice.calls;
    }
    std::move(d.delta.logprobs.begin(), d.delta.logprobs.end(), std::back_inserter(choice.logprobs));
    if (d.delta.finish != Finish::kNone) choice.finish = d.delta.finish;
  }

 private:
  struct Choice {
    bool begun = false;
    int calls = 0;
    std::string reasoning, content;
    Json tool_calls = Json::array();
    std::vector<TokenLogprob> logprobs;
    Finish finish = Finish::kNone;
  };

  const char* chunk_object() const override { return "chat.completion.chunk"; }
  const char* body_object() const override { return "chat.completion"; }
  bool takes_call(const Choice& choice) const { return options_.parallel_tool_calls || choice.calls == 0; }

  static Json chunk_choice(int index, Json delta) {
    return {{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }
  static Json call_json(const ToolCall& call) {
    return {{"id", random_id("call_")},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  }
  Json logprob_json(int32_t token, float logprob) const {
    Json bytes = Json::array();
    for (const char c : options_.tokenizer->bytes_of(token)) bytes.push_back(static_cast<unsigned char>(c));
    return {{"token", token_text(token)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
  }
  Json logprobs_json(const std::vector<TokenLogprob>& logprobs) const {
    Json content = Json::array();
    for (const TokenLogprob& p : logprobs) {
      Json entry = logprob_json(p.token, p.logprob);
      entry["top_logprobs"] = Json::array();
      for (const auto& [token, logprob] : p.top) entry["top_logprobs"].push_back(logprob_json(token, logprob));
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  Json choices_json() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      Json message = {{"role", "assistant"}};
      message["content"] = c.content.empty() && c.calls > 0 ? Json(nullptr) : Json(c.content);
      message["refusal"] = nullptr;
      if (!c.reasoning.empty()) message["reasoning_content"] = c.reasoning;
      if (c.calls > 0) message["tool_calls"] = std::move(c.tool_calls);
      list.push_back({{"index", i},
                      {"message", std::move(message)},
                      {"logprobs", options_.top_logprobs < 0 ? Json(nullptr) : logprobs_json(c.logprobs)},
                      {"finish_reason", finish_reason(c.finish, c.calls > 0)}});
    }
    return list;
  }

  std::vector<Choice> choices_;
};

class TextReply final : public ReplyBase {
 public:
  explicit TextReply(ReplyOptions options) : ReplyBase(std::move(options), "cmpl-") {
    choices_.resize(static_cast<size_t>(options_.choices));
  }

  std::string chunk(const ChoiceDelta& d) override {
    return choice_event(choice_json(d.choice, d.delta.reply.content, d.delta.logprobs, d.delta.finish));
  }

  void add(ChoiceDelta&& d) override {
    Choice& choice = choices_[static_cast<size_t>(d.choice)];
    choice.text += d.delta.reply.content;
    std::move(d.delta.logprobs.begin(), d.delta.logprobs.end(), std::back_inserter(choice.logprobs));
    if (d.delta.finish != Finish::kNone) choice.finish = d.delta.finish;
  }

 private:
  struct Choice {
    std::string text;
    std::vector<TokenLogprob> logprobs;
    Finish finish = Finish::kNone;
  };

  const char* chunk_object() const override { return "text_completion"; }
  const char* body_object() const override { return "text_completion"; }

  Json choice_json(int index, const std::string& text, const std::vector<TokenLogprob>& logprobs, Finish finish) const {
    return {{"index", index},
            {"text", text},
            {"logprobs", options_.top_logprobs < 0 ? Json(nullptr) : logprobs_json(logprobs)},
            {"finish_reason", finish_reason(finish, false)}};
  }
  Json logprobs_json(const std::vector<TokenLogprob>& logprobs) const {
    Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const TokenLogprob& p : logprobs) {
      tokens.push_back(token_text(p.token));
      values.push_back(finite(p.logprob));
      Json top = Json::object();
      for (const auto& [token, logprob] : p.top) top.emplace(token_text(token), finite(logprob));
      tops.push_back(options_.top_logprobs > 0 ? std::move(top) : Json(nullptr));
      offsets.push_back(p.text_offset);
    }
    return {{"text_offset", offsets}, {"token_logprobs", values}, {"tokens", tokens}, {"top_logprobs", tops}};
  }
  Json choices_json() override {
    Json list = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i)
      list.push_back(choice_json(static_cast<int>(i), choices_[i].text, choices_[i].logprobs, choices_[i].finish));
    return list;
  }

  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<Reply> chat_reply(ReplyOptions options) { return std::make_unique<ChatReply>(std::move(options)); }
std::unique_ptr<Reply> text_reply(ReplyOptions options) { return std::make_unique<TextReply>(std::move(options)); }

}  // namespace mettle

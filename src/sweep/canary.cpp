#include "sweep/canary.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "net/http_client.h"

namespace mettle::sweep {
namespace {

using Json = nlohmann::json;
constexpr size_t kMostBody = size_t{8} << 20, kMostReply = 2000;
constexpr size_t kDeepest = 64;

struct Reply {
  std::string text;            // the answer proper; what detectors see is `whole`, with the reasoning before it
  std::string whole, trouble;  // trouble: a sentence when there is no answer
  std::string body;
  int status = 0;
  std::vector<std::optional<double>> logprobs;
  bool has_logprobs = false, stopped = false;
};

// A server's answer is not trusted: a limit on its depth, no exception for broken text.
Json parse(const std::string& body) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string && c == '\\')
      ++i;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '{' || c == '[') && ++depth > static_cast<int>(kDeepest))
      return nullptr;
    else if (!in_string && (c == '}' || c == ']'))
      --depth;
  }
  return Json::parse(without_nan(body), nullptr, false);
}

const Json* at(const Json* value, const char* key) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(key);
  return found == value->end() ? nullptr : &*found;
}
const Json* at(const Json* value, size_t index) {
  return value != nullptr && value->is_array() && value->size() > index ? &(*value)[index] : nullptr;
}
std::string text_at(const Json* value, const char* key) {
  const Json* found = at(value, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : "";
}

void read_logprobs(const Json* list, const char* key, Reply& reply) {
  if (list == nullptr || !list->is_array()) return;
  reply.has_logprobs = !list->empty();
  for (const Json& entry : *list) {
    const Json* value = key == nullptr ? &entry : at(&entry, key);
    reply.logprobs.push_back(value != nullptr && value->is_number() ? std::optional(value->get<double>())
                                                                    : std::nullopt);
  }
}

void read_answer(const std::string& body, bool chat, Reply& reply) {
  const Json json = parse(body);
  const Json* choice = at(at(&json, "choices"), size_t{0});
  if (choice == nullptr) {
    reply.trouble = fmt::format("what came is no answer: {}", in_quotes(body, 200));
    return;
  }
  const Json* logprobs = at(choice, "logprobs");
  if (chat) {
    const Json* message = at(choice, "message");
    const std::string reasoning = text_at(message, "reasoning_content") + text_at(message, "reasoning");
    reply.text = text_at(message, "content");
    reply.whole = reasoning + reply.text;
    if (reply.text.empty()) reply.text = reasoning;
    read_logprobs(at(logprobs, "content"), "logprob", reply);
  } else {
    reply.text = reply.whole = text_at(choice, "text");
    read_logprobs(at(logprobs, "token_logprobs"), nullptr, reply);
  }
}

std::string first_model(HttpClient& client, const std::string& base, double seconds, const std::atomic<bool>* stop) {
  HttpRequest request;
  request.url = base + "/v1/models";
  request.total_seconds = seconds;
  request.body_limit = kMostBody;
  request.stop = stop;
  const HttpReply reply = client.send(request);
  if (!reply.ok()) return "";
  const Json json = parse(reply.body);
  return text_at(at(at(&json, "data"), size_t{0}), "id");
}

Reply ask(HttpClient& client, const std::string& base, const ServerPlan& server, const std::string& model,
          const CanaryPrompt& prompt, bool logprobs, double seconds, const std::atomic<bool>* stop) {
  const bool chat = server.endpoint == "chat";
  Json body = {{"model", model}, {"max_tokens", prompt.max_tokens}, {"temperature", 0}, {"stream", false}};
  if (chat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.prompt}}});
    if (logprobs) body["logprobs"] = true;
  } else {
    body["prompt"] = prompt.prompt;
    if (logprobs) body["logprobs"] = 1;
  }
  HttpRequest request;
  request.method = "POST";
  request.url = base + (chat ? "/v1/chat/completions" : "/v1/completions");
  request.headers = {{"content-type", "application/json"}};
  request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  request.total_seconds = seconds;
  request.body_limit = kMostBody;
  request.stop = stop;
  const HttpReply answer = client.send(request);
  Reply reply;
  reply.status = answer.status;
  reply.body = answer.body.substr(0, kMostReply);
  reply.stopped = answer.end == HttpEnd::kStopped;
  if (answer.end != HttpEnd::kDone)
    reply.trouble = answer.error;
  else if (!answer.ok())
    reply.trouble = fmt::format("status {}: {}", answer.status, in_quotes(answer.body, 200));
  else
    read_answer(answer.body, chat, reply);
  return reply;
}

std::optional<Finding> judge(const Reply& reply, const CanaryPrompt& prompt, const std::string& reference,
                             double least) {
  if (auto bad = find_bad_logprobs(reply.logprobs)) return bad;
  if (auto bad = find_garbage(reply.whole)) return bad;
  if (reply.text.find_first_not_of(" \t\r\n") == std::string::npos)
    return Finding{"EMPTY_ANSWER", fmt::format("the answer to {} is empty", in_quotes(prompt.prompt))};
  if (!prompt.answer.empty()) {  // what was asked for may repeat itself
    const auto wrong = find_wrong_answer(reply.text, prompt);
    const auto repeats = wrong ? find_repetition(reply.whole) : std::nullopt;
    return repeats ? repeats : wrong;
  }
  if (auto bad = find_repetition(reply.whole)) return bad;
  if (!reference.empty()) {
    const double share = agreement(reply.text, reference);
    if (share < least)
      return Finding{
          "WRONG_ANSWER",
          fmt::format("the answer to {} agrees with {:.0f} % of the reference's, must with {:.0f} %: {}, not {}",
                      in_quotes(prompt.prompt), 100 * share, 100 * least, in_quotes(reply.text), in_quotes(reference))};
  }
  return std::nullopt;
}

}  // namespace

CanaryResult ask_canary(const std::string& base_url, const ServerPlan& server, const CanaryPlan& plan,
                        const std::vector<std::string>& references, const std::atomic<bool>* stop) {
  CanaryResult result;
  HttpClient client;
  result.model = server.served_model;
  if (result.model.empty()) result.model = first_model(client, base_url, plan.seconds, stop);
  bool logprobs = plan.logprobs;
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    const CanaryPrompt& prompt = plan.prompts[i];
    Reply reply = ask(client, base_url, server, result.model, prompt, logprobs, plan.seconds, stop);
    if (logprobs && reply.status >= 400 && reply.status < 500) {
      Reply without = ask(client, base_url, server, result.model, prompt, false, plan.seconds, stop);
      if (without.trouble.empty()) {
        result.notes.push_back(
            fmt::format("it refuses log-probabilities ({}); they were not looked at", reply.trouble));
        logprobs = false;
        reply = std::move(without);
      }
    }
    if (reply.stopped) {
      result.stopped = true;
      return result;
    }
    Answer answer{prompt.prompt, reply.text, std::nullopt};
    if (!reply.trouble.empty()) {
      answer.finding =
          Finding{"NO_ANSWER", fmt::format("{} was not answered: {}", in_quotes(prompt.prompt), reply.trouble)};
      result.reply = reply.body;
    } else {
      if (logprobs && !reply.has_logprobs) {
        result.notes.push_back("it sends no log-probabilities; they were not looked at");
        logprobs = false;
      }
      answer.finding = judge(reply, prompt, i < references.size() ? references[i] : "", plan.agreement);
    }
    if (answer.finding && !result.finding) result.finding = answer.finding;
    const bool dead = !reply.trouble.empty();
    result.answers.push_back(std::move(answer));
    if (dead) break;
  }
  return result;
}

std::vector<std::string> reference_answers(const CanaryPlan& plan, const ServerPlan& server,
                                           const std::atomic<bool>* stop) {
  std::vector<std::string> out(plan.prompts.size());
  if (plan.reference.empty()) return out;
  std::string base = plan.reference;
  while (base.ends_with('/')) base.pop_back();
  if (base.ends_with("/v1")) base.resize(base.size() - 3);
  HttpClient client;
  const std::string model = first_model(client, base, plan.seconds, stop);
  for (size_t i = 0; i < out.size(); ++i) {
    if (!plan.prompts[i].answer.empty()) continue;
    const Reply reply = ask(client, base, server, model, plan.prompts[i], false, plan.seconds, stop);
    if (!reply.trouble.empty())
      fail(Code::kDevice,
           fmt::format("reference server: must answer {}, {}", in_quotes(plan.prompts[i].prompt), reply.trouble));
    out[i] = reply.text;
  }
  return out;
}

}  // namespace mettle::sweep

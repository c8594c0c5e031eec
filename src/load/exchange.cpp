#include "load/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "load/sse.h"

namespace mettle {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostAnswer = size_t{64} << 20, kMostErrorBody = 4096, kMostQuoted = 300;
constexpr int64_t kMostTokens = 1'000'000'000;

const Json* field(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const std::string* text_field(const Json& object, const char* key) {
  const Json* value = field(object, key);
  return value != nullptr && value->is_string() ? value->get_ptr<const std::string*>() : nullptr;
}

int count_field(const Json& object, const char* key) {
  const Json* value = field(object, key);
  if (value == nullptr || !value->is_number_integer()) return 0;
  const int64_t count = value->get<int64_t>();
  return count < 0 || count > kMostTokens ? 0 : static_cast<int>(count);
}

// What a server sent, fit to stand in a line.
std::string as_line(std::string_view text) {
  std::string out = printable(text.substr(0, kMostQuoted));
  if (text.size() > kMostQuoted) out += "...";
  return out;
}

// The message of {"error": {"message": ...}}, {"error": "..."} or {"object": "error", "message": ...}; empty when it is
// none of these.
std::string error_of(const Json& json) {
  const Json* error = field(json, "error");
  const std::string* object = text_field(json, "object");
  if (error == nullptr && (object == nullptr || *object != "error")) return "";
  const std::string* message = error == nullptr     ? text_field(json, "message")
                               : error->is_string() ? error->get_ptr<const std::string*>()
                                                    : text_field(*error, "message");
  return message != nullptr && !message->empty() ? as_line(*message) : "an error object without a message";
}

// Reads the answer as it comes.
class AnswerReader {
 public:
  AnswerReader(LoadRequest& out, std::string& answer) : out_(out), answer_(answer), start_(Clock::now()) {}

  void take_data(std::string_view data, Clock::time_point now) {
    if (take_json(data, now)) return;
    // Servers that put no empty line between events: each line is one.
    while (!data.empty() && !failed()) {
      const size_t end = std::min(data.find('\n'), data.size());
      const std::string_view line = data.substr(0, end);
      data.remove_prefix(std::min(end + 1, data.size()));
      if (!line.empty() && !take_json(line, now))
        fail_with("bad_json", fmt::format("stream: events must be JSON, got \"{}\"", as_line(line)));
    }
  }

  // One chunk of a stream, or a whole answer.
  void take(const Json& json, Clock::time_point now) {
    if (const std::string error = error_of(json); !error.empty()) return fail_with("stream_error", error);
    if (const Json* usage = field(json, "usage")) {
      out_.input_tokens = std::max(out_.input_tokens, count_field(*usage, "prompt_tokens"));
      out_.output_tokens = std::max(out_.output_tokens, count_field(*usage, "completion_tokens"));
      usage_ = true;
    }
    const Json* choices = field(json, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return;
    const Json& choice = choices->front();
    const Json* delta = field(choice, "delta");
    if (delta == nullptr) delta = field(choice, "message");
    const std::string* content = delta != nullptr ? text_field(*delta, "content") : text_field(choice, "text");
    const std::string* reasoning = delta != nullptr ? text_field(*delta, "reasoning_content") : nullptr;
    if (reasoning == nullptr && delta != nullptr) reasoning = text_field(*delta, "reasoning");
    bool text = false;
    for (const std::string* part : {reasoning, content}) {
      if (part == nullptr || part->empty()) continue;
      out_.text += *part;
      if (part == content) answer_ += *part;
      text = true;
    }
    if (text) take_time(now);
    if (const std::string* why = text_field(choice, "finish_reason")) {
      out_.finish_reason = as_line(*why);
      finished_ = true;
    }
    end_ = now;
  }

  void fail_with(std::string kind, std::string sentence) {
    if (!out_.error.empty()) return;  // the first one is the cause
    out_.error_kind = std::move(kind);
    out_.error = std::move(sentence);
  }

  void finish(bool stream) {
    if (out_.error.empty() && stream && !done_ && !finished_)
      fail_with("cut", fmt::format("stream: must end with [DONE] or a finish_reason, ended after {} pieces of text",
                                   out_.text.empty() ? 0 : out_.itl_ms.size() + 1));
    if (out_.error.empty() && !finished_ && out_.text.empty() && !usage_)
      fail_with("bad_json", "answer: must have choices, came without any");
    if (!out_.error.empty()) return;
    if (end_ == Clock::time_point()) end_ = Clock::now();
    out_.e2e_ms = since(start_, end_);
    if (out_.text.empty()) out_.ttft_ms = out_.e2e_ms;  // all its tokens were special ones, or halves of characters
  }

  bool failed() const { return !out_.error.empty(); }

 private:
  bool take_json(std::string_view data, Clock::time_point now) {
    if (data == "[DONE]") {
      done_ = true;
      return true;
    }
    const Json json = Json::parse(data, nullptr, false);
    if (!json.is_discarded()) take(json, now);
    return !json.is_discarded();
  }
  static double since(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
  }
  void take_time(Clock::time_point now) {
    if (last_ == Clock::time_point())
      out_.ttft_ms = since(start_, now);
    else
      out_.itl_ms.push_back(since(last_, now));
    last_ = now;
  }

  LoadRequest& out_;
  std::string& answer_;
  Clock::time_point start_, last_, end_;
  bool done_ = false, finished_ = false, usage_ = false;
};

std::string body_of(const LoadTarget& target, const std::vector<Turn>& turns, int output_tokens) {
  const LoadOptions& options = *target.options;
  Json body = {{"model", target.model}, {"max_tokens", output_tokens}, {"temperature", options.temperature}};
  if (options.chat) {
    Json messages = Json::array();
    for (size_t i = 0; i < turns.size(); ++i) {
      messages.push_back({{"role", "user"}, {"content", turns[i].user}});
      if (i + 1 < turns.size()) messages.push_back({{"role", "assistant"}, {"content", turns[i].answer}});
    }
    body["messages"] = std::move(messages);
  } else {
    std::string prompt;
    for (const Turn& turn : turns) prompt += turn.user + turn.answer;
    body["prompt"] = std::move(prompt);
  }
  body["stream"] = options.stream;
  if (options.stream) body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

LoadRequest exchange(HttpClient& client, const LoadTarget& target, const std::vector<Turn>& turns, int output_tokens,
                     std::string& answer) {
  const LoadOptions& options = *target.options;
  LoadRequest out;
  HttpRequest request;
  request.method = "POST";
  request.url = target.root + (options.chat ? "/v1/chat/completions" : "/v1/completions");
  request.headers = headers_of(options);
  request.headers.emplace_back("Content-Type", "application/json");
  request.body = body_of(target, turns, output_tokens);
  request.total_seconds = options.request_seconds;
  request.body_limit = kMostAnswer;
  request.stop = options.stop;
  bool events = false;
  std::string plain;  // of answers that are no stream
  SseParser parser;
  answer.clear();
  AnswerReader reader(out, answer);
  const auto on_data = [&](std::string_view data) { reader.take_data(data, Clock::now()); };
  request.on_head = [&](const HttpReply& head) {
    events = head.status == 200 && head.header("content-type").substr(0, 17) == "text/event-stream";
    return true;
  };
  request.on_body = [&](std::string_view piece) {
    if (!events) {
      plain += piece;
      return true;
    }
    if (!parser.push(piece, on_data)) reader.fail_with("too_large", "stream: a line must have at most 4 MiB");
    return !reader.failed();
  };
  const HttpReply reply = client.send(request);
  const Clock::time_point now = Clock::now();
  out.status = reply.status;
  if (events && reply.end == HttpEnd::kDone) parser.finish(on_data);
  if (!reader.failed()) {
    if (reply.status >= 400) {
      const Json json = Json::parse(plain, nullptr, false);
      std::string why = error_of(json);
      if (why.empty()) why = as_line(std::string_view(plain).substr(0, kMostErrorBody));
      reader.fail_with(fmt::format("http_{}", reply.status), fmt::format("HTTP {}: {}", reply.status, why));
    } else if (reply.end != HttpEnd::kDone) {
      reader.fail_with(name_of(reply.end), reply.error);
    } else if (reply.status != 200) {
      reader.fail_with(fmt::format("http_{}", reply.status), fmt::format("HTTP {}: must be 200", reply.status));
    } else if (!events) {
      const Json json = Json::parse(plain, nullptr, false);
      if (json.is_discarded())
        reader.fail_with("bad_json", fmt::format("answer: must be JSON, got \"{}\"", as_line(plain)));
      else
        reader.take(json, now);
    }
  }
  reader.finish(events);
  if (answer.empty()) answer = out.text;  // cut while it still reasoned
  return out;
}

std::string root_of(const std::string& base_url) {
  std::string root = base_url;
  if (root.find("://") == std::string::npos) root = "http://" + root;
  while (root.ends_with('/')) root.pop_back();
  if (root.ends_with("/v1")) root.resize(root.size() - 3);
  while (root.ends_with('/')) root.pop_back();
  const bool http = root.starts_with("http://") || root.starts_with("https://");
  const bool plain = std::all_of(root.begin(), root.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!http || !plain || root.find("://") + 3 >= root.size() || root.size() > 2048)
    fail(Code::kInvalidRequest, fmt::format("URL: must be like http://127.0.0.1:8000, got \"{}\"", as_line(base_url)));
  return root;
}

HttpHeaders headers_of(const LoadOptions& options) {
  HttpHeaders headers;
  if (!options.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + options.api_key);
  return headers;
}

std::string find_served_model(HttpClient& client, const LoadOptions& options, const std::string& root) {
  HttpRequest request;
  request.url = root + "/v1/models";
  request.headers = headers_of(options);
  request.total_seconds = std::min(options.request_seconds, 60.0);
  request.stop = options.stop;
  const HttpReply reply = client.send(request);
  if (reply.end == HttpEnd::kRefused) fail(Code::kDevice, reply.error);
  if (!options.model.empty()) return options.model;
  if (reply.end != HttpEnd::kDone) fail(Code::kDevice, reply.error);
  if (!reply.ok())
    fail(Code::kDevice,
         fmt::format("{}: must list a model, got status {}: {}", request.url, reply.status, as_line(reply.body)));
  const Json json = Json::parse(reply.body, nullptr, false);
  const Json* data = field(json, "data");
  const std::string* id =
      data != nullptr && data->is_array() && !data->empty() ? text_field(data->front(), "id") : nullptr;
  if (id == nullptr || id->empty() || id->size() > 1024)
    fail(Code::kDevice, fmt::format("{}: must list a model (or name one), got {}", request.url, as_line(reply.body)));
  return *id;
}

}  // namespace mettle

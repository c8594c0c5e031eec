#include "server/api.h"

#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "server/answer.h"
#include "server/http_fields.h"

namespace mettle {
namespace {

// Compares in a time that depends on the length of what came alone.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  return difference == 0;
}

// RFC 9110 8.3.1: without the parameters.
std::string_view media_type(std::string_view value) {
  value = value.substr(0, value.find(';'));
  return value.substr(0, value.find_last_not_of(" \t") + 1);
}

}  // namespace

struct Api::Route {
  std::string_view method, path;
  void (Api::*handler)(Call&);
  bool prefix = false;  // path is followed by a name
  bool open = false;    // needs no API key
};

const Api::Route* Api::routes() {
  static constexpr Route kRoutes[] = {
      {"POST", "/v1/chat/completions", &Api::chat},
      {"POST", "/v1/completions", &Api::complete_text},
      {"GET", "/v1/models", &Api::models},
      {"GET", "/v1/models/", &Api::model, true},
      {"GET", "/v1/plan", &Api::plan},
      {"POST", "/tokenize", &Api::tokenize},
      {"POST", "/detokenize", &Api::detokenize},
      {"GET", "/metrics", &Api::metrics},
      {"GET", "/health/live", &Api::live, false, true},
      {"GET", "/health/ready", &Api::ready, false, true},
      {"GET", "/health", &Api::ready, false, true},
      {},
  };
  return kRoutes;
}

Api::Api(ApiOptions options, Engine& engine, const TextModel& model)
    : options_(std::move(options)), engine_(engine), model_(model), started_(std::time(nullptr)) {
  if (options_.served_name.empty()) options_.served_name = model.name();
}

void Api::answer(Call& call, HttpResponse response) {
  metrics_->count_answer(call.route, response.status);
  call.exchange->respond(std::move(response));
}

void Api::handle(const std::shared_ptr<Exchange>& exchange) {
  Call call{exchange, exchange->request()};
  try {
    dispatch(call);
  } catch (const ApiRefusal& refusal) {
    HttpResponse response = error_response(refusal.error);
    response.headers.insert(response.headers.end(), refusal.headers.begin(), refusal.headers.end());
    answer(call, std::move(response));
  } catch (const Error& e) {
    answer(call, error_response(api_error(e)));
  }
}

void Api::dispatch(Call& call) {
  const std::string& method = call.request.method;
  const std::string& path = call.request.path;
  std::string allowed;
  const Route* found = nullptr;
  for (const Route* r = routes(); r->handler != nullptr; ++r) {
    const bool here = r->prefix ? path.size() > r->path.size() && path.starts_with(r->path) : path == r->path;
    if (!here) continue;
    call.route = r->path;
    allowed = std::string(r->method) + (r->method == "GET" ? ", HEAD, OPTIONS" : ", OPTIONS");
    if (method == r->method || (method == "HEAD" && r->method == "GET")) found = r;
    if (!r->open && !authorized(call.request))
      throw ApiRefusal{{401, "a valid API key is needed: Authorization: Bearer KEY", {}, "invalid_api_key"},
                       {{"WWW-Authenticate", "Bearer"}}};
    break;
  }
  if (found == nullptr || !found->open) check_host(call.request);
  if (path == "*") allowed = "GET, HEAD, POST, OPTIONS";  // OPTIONS of the server itself
  if (allowed.empty())
    throw ApiRefusal{{404, fmt::format("no such path: {} {}", method, path.substr(0, 200)), {}, "not_found"}, {}};
  if (method == "OPTIONS") return answer(call, {.status = 204, .content_type = "", .headers = {{"Allow", allowed}}});
  if (found == nullptr)
    throw ApiRefusal{
        {405, fmt::format("{} does not take {}; it takes {}", call.route, method, allowed), {}, "method_not_allowed"},
        {{"Allow", allowed}}};
  const std::string& type = call.request.content_type;
  if (method == "POST" && !type.empty() && !same_word(media_type(type), "application/json"))
    throw ApiRefusal{{415,
                      fmt::format("Content-Type: must be application/json, got {}", type.substr(0, 100)),
                      {},
                      "unsupported_media_type"},
                     {}};
  const std::string& encoding = call.request.content_encoding;
  if (method == "POST" && !encoding.empty() && !same_word(encoding, "identity"))
    throw ApiRefusal{{415,
                      fmt::format("Content-Encoding: must be identity or absent, got {}", encoding.substr(0, 100)),
                      {},
                      "unsupported_media_type"},
                     {{"Accept-Encoding", "identity"}}};
  (this->*found->handler)(call);
}

bool Api::authorized(const HttpRequest& request) const {
  if (options_.api_key.empty()) return true;
  static constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = request.authorization;
  return same_word(given.substr(0, kScheme.size()), kScheme) &&
         same_secret(given.substr(kScheme.size()), options_.api_key);
}

void Api::check_host(const HttpRequest& request) const {
  if (!options_.local_hosts || is_local_host(request.host)) return;
  throw ApiRefusal{{403,
                    fmt::format("Host: must be localhost, a name without a dot or an IP address, since this server has "
                                "no API key and listens to this machine alone; got {}",
                                request.host.substr(0, 200)),
                    {},
                    "foreign_host"},
                   {}};
}

RequestContext Api::context() const {
  const EngineInfo& info = engine_.info();
  return {.vocab_size = info.vocab_size, .context_length = info.context_length, .defaults = model_.sampling()};
}

void Api::check_accepting() const {
  if (draining_) throw ApiRefusal{{503, "the server is shutting down", {}, "shutting_down"}, {}};
  if (const EngineStats stats = engine_.stats(); !stats.healthy)
    throw ApiRefusal{{503, "the engine has stopped: " + stats.unhealthy_why, {}, "unhealthy"}, {}};
}

void Api::check_model(const std::string& name) const {
  if (name.empty() || name == options_.served_name || name == model_.name()) return;
  throw ApiRefusal{{404, fmt::format("model: this server has {}, got {}", options_.served_name, name.substr(0, 200)),
                    "model", "model_not_found"},
                   {}};
}

void Api::note_ignored(const std::vector<std::string>& fields) {
  if (fields.empty() || told_ignored_.exchange(true)) return;
  // Names are the client's: escaped, so that none ends the line or moves the cursor of a terminal.
  log::warn("server: unknown request fields are ignored: {} (said once)",
            nlohmann::ordered_json(fields).dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace));
}

void Api::chat(Call& call) {
  check_accepting();
  ChatRequest request = parse_chat_request(call.request.body, context());
  check_model(request.model);
  note_ignored(request.ignored);
  const EngineInfo& info = engine_.info();
  ChatPrompt prompt = model_.chat(request.messages, request.tools, request.template_kwargs, info.context_length);
  ReplyParserOptions parser{.starts_in_reasoning = prompt.opens_reasoning};
  if (!request.tools.is_null()) {
    parser.parse_tool_calls = true;
    parser.tools_json = request.tools.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  const int top = request.sampling.top_logprobs;
  GenerationRequest generation{.n = request.n,
                               .sampling = request.sampling,
                               .max_tokens_given = request.max_tokens_given,
                               .completion = {.stop = std::move(request.stop),
                                              .min_tokens = request.sampling.min_tokens,
                                              .skip_special = request.skip_special_tokens,
                                              .logprobs = top >= 0,
                                              .reply = std::move(parser)}};
  generation.prompts.push_back(std::move(prompt.ids));
  Answer::begin(call.exchange,
                chat_reply({.model = options_.served_name,
                            .choices = request.n,
                            .top_logprobs = top,
                            .include_usage = request.include_usage,
                            .parallel_tool_calls = request.parallel_tool_calls,
                            .tokenizer = &model_.tokenizer()}),
                request.stream ? Delivery::kStream : Delivery::kWhole, engine_, model_.tokenizer(),
                std::move(generation), metrics_,
                [this, route = call.route](int status) { metrics_->count_answer(route, status); });
}

void Api::complete_text(Call& call) {
  check_accepting();
  TextRequest request = parse_text_request(call.request.body, context());
  check_model(request.model);
  note_ignored(request.ignored);
  const int top = request.sampling.top_logprobs;
  GenerationRequest generation{.n = request.n,
                               .sampling = request.sampling,
                               .max_tokens_given = request.max_tokens_given,
                               .completion = {.stop = std::move(request.stop),
                                              .min_tokens = request.sampling.min_tokens,
                                              .skip_special = request.skip_special_tokens,
                                              .logprobs = top >= 0}};
  for (auto& prompt : request.prompts) {
    if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
      generation.prompts.push_back(std::move(*ids));
    else
      generation.prompts.push_back(
          model_.encode(std::get<std::string>(prompt), engine_.info().context_length, "prompt"));
  }
  const int choices = static_cast<int>(request.prompts.size()) * request.n;
  Answer::begin(call.exchange,
                text_reply({.model = options_.served_name,
                            .choices = choices,
                            .top_logprobs = top,
                            .include_usage = request.include_usage,
                            .tokenizer = &model_.tokenizer()}),
                request.stream ? Delivery::kStream : Delivery::kWhole, engine_, model_.tokenizer(),
                std::move(generation), metrics_,
                [this, route = call.route](int status) { metrics_->count_answer(route, status); });
}

}  // namespace mettle

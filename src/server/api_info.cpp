// Routes that tell about the server and its model.
#include <fmt/format.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/api.h"
#include "server/field_reader.h"
#include "server/json_limits.h"
#include "server/plan_json.h"

namespace mettle {
namespace {

constexpr size_t kMaxDetokenize = 1'000'000;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string percent_decoded(std::string_view text) {
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && is_hex(text[i + 1]) && is_hex(text[i + 2])) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

Json Api::model_json() const {
  const EngineInfo& info = engine_.info();
  return {{"id", options_.served_name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "mettle"},
          {"root", model_.name()},
          {"max_model_len", info.context_length},
          {"dense_dtype", name_of(info.dense)},
          {"kv_cache_dtype", kv_cache_name(info)}};
}

void Api::models(Call& call) {
  answer(call, {.body = dump({{"object", "list"}, {"data", Json::array({model_json()})}})});
}

void Api::model(Call& call) {
  static constexpr std::string_view kPrefix = "/v1/models/";
  check_model(percent_decoded(std::string_view(call.request.path).substr(kPrefix.size())));
  answer(call, {.body = dump(model_json())});
}

void Api::tokenize(Call& call) {
  const int context = engine_.info().context_length;
  const Json body = parse_json(call.request.body);
  const FieldReader fields(body, "");
  check_model(fields.text("model").value_or(""));
  std::vector<int32_t> ids;
  if (const auto prompt = fields.text("prompt")) {
    ids = model_.tokenizer().encode(*prompt, AddedTokens::kAsTokens);
  } else if (const Json* messages = fields.find("messages")) {
    const Json* kwargs = fields.object("chat_template_kwargs");
    ids =
        model_.chat(normalise_messages(*messages), nullptr, kwargs != nullptr ? *kwargs : Json::object(), context).ids;
  } else {
    refuse_field("prompt", "is required, or messages");
  }
  answer(call, {.body = dump({{"tokens", ids}, {"count", ids.size()}, {"max_model_len", context}})});
}

void Api::detokenize(Call& call) {
  const Json body = parse_json(call.request.body);
  const FieldReader fields(body, "");
  check_model(fields.text("model").value_or(""));
  fields.need("tokens");
  const Json& tokens = *fields.array("tokens");
  if (tokens.size() > kMaxDetokenize)
    refuse_field("tokens", fmt::format("must have at most {} entries", kMaxDetokenize), tokens);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i)
    ids.push_back(
        static_cast<int32_t>(integer_of(tokens[i], fmt::format("tokens[{}]", i), 0, engine_.info().vocab_size - 1)));
  answer(call, {.body = dump({{"prompt", model_.tokenizer().decode(ids, false)}})});
}

void Api::live(Call& call) {
  const EngineStats stats = engine_.stats();
  Json body = {{"status", stats.healthy ? "live" : "dead"}};
  if (!stats.healthy) body["why"] = stats.unhealthy_why;
  answer(call, {.status = stats.healthy ? 200 : 503, .body = dump(body)});
}

void Api::ready(Call& call) {
  check_accepting();
  const ServingPlan serving = engine_.serving();
  Json body = {{"status", serving.quarantines.empty() ? "ready" : "degraded"}, {"model", options_.served_name}};
  if (!serving.quarantines.empty()) body["quarantined"] = quarantines_json(serving);
  answer(call, {.body = dump(body)});
}

void Api::plan(Call& call) {
  answer(call, {.body = dump(plan_json(options_.served_name, engine_.info(), engine_.stats(), engine_.serving()))});
}

void Api::metrics(Call& call) {
  const int64_t connections = options_.connections ? options_.connections() : 0;
  answer(call, {.body = metrics_->text(engine_.info(), engine_.stats(), engine_.serving(), connections),
                .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

}  // namespace mettle

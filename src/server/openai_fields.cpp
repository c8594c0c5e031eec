#include "server/openai_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace mettle {
namespace {

constexpr int kMaxChoices = 16;
constexpr size_t kMaxStops = 16, kMaxStopBytes = 1024, kMaxStopIds = 64, kMaxBiases = 1024;

// Reading these as absent would give an answer that is not what the client asked for.
constexpr std::array kRefused = {
    "audio",
    "functions",
    "function_call",
    "prediction",
    "web_search_options",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "regex",
    "ebnf",
    "json_schema",
    "suffix",
    "use_beam_search",
    "prompt_embeds",
    "bad_words",
    "input_ids",
    "lora_path",
    "images",
    "truncate_prompt_tokens",
    "allowed_token_ids",
    "chat_template",
    "custom_logit_processor",
    "documents",
    "logits_processors",
    "stop_regex",
};
// As those, unless they have the value that they would have had anyhow.
struct OnlyValue {
  std::string_view name;
  int value;  // 0 and 1 are false and true
};
constexpr std::array kOnlyValues = {
    OnlyValue{"add_generation_prompt", 1},      OnlyValue{"best_of", 1},
    OnlyValue{"continue_final_message", 0},     OnlyValue{"echo", 0},
    OnlyValue{"include_stop_str_in_output", 0}, OnlyValue{"no_stop_trim", 0},
};
constexpr std::array kHarmless = {"user",
                                  "metadata",
                                  "store",
                                  "service_tier",
                                  "safety_identifier",
                                  "prompt_cache_key",
                                  "verbosity",
                                  "length_penalty",
                                  "spaces_between_special_tokens",
                                  "request_id",
                                  "rid",
                                  "priority"};
constexpr std::array kShared = {"model",
                                "stream",
                                "stream_options",
                                "n",
                                "stop",
                                "stop_token_ids",
                                "temperature",
                                "top_p",
                                "top_k",
                                "min_p",
                                "presence_penalty",
                                "frequency_penalty",
                                "seed",
                                "logit_bias",
                                "min_tokens",
                                "ignore_eos",
                                "repetition_penalty",
                                "skip_special_tokens",
                                "max_tokens",
                                "max_completion_tokens",
                                "response_format"};

template <class List>
bool has(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

void sort_out_fields(const FieldReader& body, const Json& json, std::span<const std::string_view> own,
                     GenerationFields& out) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_null() || has(own, key) || has(kShared, key)) continue;
    if (has(kRefused, key)) refuse_field(body.path_of(key), "is not supported by this server");
    const auto only =
        std::find_if(kOnlyValues.begin(), kOnlyValues.end(), [&](const OnlyValue& o) { return o.name == key; });
    if (only != kOnlyValues.end()) {
      if (value != Json(only->value) && value != Json(only->value == 1))
        refuse_field(body.path_of(key), "is not supported by this server", value);
      continue;
    }
    if (!has(kHarmless, key) && out.ignored.size() < 16) out.ignored.push_back(key.substr(0, 80));
  }
}

void read_sampling(const FieldReader& body, const RequestContext& context, SamplingParams& s) {
  const SamplingDefaults& d = context.defaults;
  s.temperature = body.number("temperature", 0, 2).value_or(d.temperature.value_or(1));
  s.top_p = body.number("top_p", 0, 1).value_or(d.top_p.value_or(1));
  s.min_p = body.number("min_p", 0, 1).value_or(d.min_p.value_or(0));
  s.repetition = body.number("repetition_penalty", 0.01, 10).value_or(d.repetition_penalty.value_or(1));
  s.presence = body.number("presence_penalty", -2, 2).value_or(0);
  s.frequency = body.number("frequency_penalty", -2, 2).value_or(0);
  // 0 is allowed by the API and means the first choice alone.
  s.top_p = std::max(s.top_p, 1e-6);
  const int64_t top_k = body.integer("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(d.top_k.value_or(0));
  s.top_k = top_k <= 0 || top_k >= context.vocab_size ? 0 : static_cast<int>(top_k);
  if (const Json* seed = body.find("seed")) {
    if (!seed->is_number_integer())
      refuse_field("seed", fmt::format("must be an integer in {}..{}", INT64_MIN, UINT64_MAX), *seed);
    s.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  }
  if (const Json* bias = body.object("logit_bias")) {
    if (bias->size() > kMaxBiases)
      refuse_field("logit_bias", fmt::format("must have at most {} entries", kMaxBiases), *bias);
    const FieldReader entries(*bias, "logit_bias");
    for (const auto& [key, value] : bias->items()) {
      int32_t id = -1;
      const std::errc ec = std::from_chars(key.data(), key.data() + key.size(), id).ec;
      // In one form each: "5" and "05" would be two biases of one token.
      if (ec != std::errc() || id < 0 || id >= context.vocab_size || key != std::to_string(id))
        refuse_field("logit_bias", fmt::format("keys must be token ids in 0..{}", context.vocab_size - 1), Json(key));
      if (const auto v = entries.number(key, -100, 100)) s.logit_bias.emplace_back(id, static_cast<float>(*v));
    }
  }
}

void read_ends(const FieldReader& body, const RequestContext& context, GenerationFields& out) {
  SamplingParams& s = out.sampling;
  s.ignore_eos = body.boolean("ignore_eos").value_or(false);
  s.min_tokens = static_cast<int>(body.integer("min_tokens", 0, context.context_length).value_or(0));
  if (out.max_tokens_given && s.min_tokens > s.max_tokens)
    refuse_field("min_tokens", fmt::format("must be at most max_tokens = {}, got {}", s.max_tokens, s.min_tokens));
  if (const Json* ids = body.array("stop_token_ids")) {
    if (ids->size() > kMaxStopIds)
      refuse_field("stop_token_ids", fmt::format("must have at most {} entries", kMaxStopIds), *ids);
    for (size_t i = 0; i < ids->size(); ++i)
      s.stop_ids.push_back(
          static_cast<int32_t>(integer_of((*ids)[i], fmt::format("stop_token_ids[{}]", i), 0, context.vocab_size - 1)));
  }
  const Json* stop = body.find("stop");
  if (stop == nullptr) return;
  if (!stop->is_string() && !stop->is_array()) refuse_field("stop", "must be a string or a list of strings", *stop);
  if (stop->is_array() && stop->size() > kMaxStops)
    refuse_field("stop", fmt::format("must have at most {} strings", kMaxStops), *stop);
  const auto add = [&](const Json& value, const std::string& field) {
    const std::string& text = text_of(value, field);
    if (text.empty() || text.size() > kMaxStopBytes)
      refuse_field(field, fmt::format("must have 1..{} bytes", kMaxStopBytes), value);
    out.stop.push_back(text);
  };
  if (stop->is_string()) return add(*stop, "stop");
  for (size_t i = 0; i < stop->size(); ++i) add((*stop)[i], fmt::format("stop[{}]", i));
}

void read_response_format(const FieldReader& body) {
  const Json* format = body.object("response_format");
  if (format == nullptr) return;
  const std::string type = FieldReader(*format, "response_format").text("type").value_or("");
  if (type != "text")
    refuse_field("response_format", "only {\"type\": \"text\"} is supported by this server", Json(type));
}

}  // namespace

void read_generation_fields(const FieldReader& body, const RequestContext& context,
                            std::span<const std::string_view> own, GenerationFields& out) {
  sort_out_fields(body, body.json(), own, out);
  out.model = body.text("model").value_or("");
  out.n = static_cast<int>(body.integer("n", 1, kMaxChoices).value_or(1));
  out.stream = body.boolean("stream").value_or(false);
  if (const Json* options = body.object("stream_options")) {
    if (!out.stream) refuse_field("stream_options", "is allowed only with stream = true");
    out.include_usage = FieldReader(*options, "stream_options").boolean("include_usage").value_or(false);
  }
  out.skip_special_tokens = body.boolean("skip_special_tokens").value_or(true);
  read_response_format(body);
  read_sampling(body, context, out.sampling);
  const char* const key = body.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  const auto max_tokens = body.integer(key, 1, std::numeric_limits<int32_t>::max());
  out.max_tokens_given = max_tokens.has_value();
  out.sampling.max_tokens = static_cast<int>(max_tokens.value_or(context.context_length));
  read_ends(body, context, out);
}

}  // namespace mettle

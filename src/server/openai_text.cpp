// The body of /v1/completions.
#include <fmt/format.h>

#include "server/json_limits.h"
#include "server/openai_fields.h"

namespace mettle {
namespace {

constexpr size_t kMaxPrompts = 64;
constexpr size_t kMaxSequences = 128;  // prompts x n
constexpr int kMaxLogprobs = 20;

bool all_numbers(const Json& list) {
  for (const Json& item : list)
    if (!item.is_number()) return false;
  return !list.empty();
}

std::vector<int32_t> token_ids(const Json& list, const std::string& field, const RequestContext& context) {
  if (list.empty()) refuse_field(field, "must have at least one token");
  if (list.size() > static_cast<size_t>(context.context_length))
    refuse_field(field,
                 fmt::format("must fit into the context of {} tokens, got {}", context.context_length, list.size()));
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    ids.push_back(
        static_cast<int32_t>(integer_of(list[i], fmt::format("{}[{}]", field, i), 0, context.vocab_size - 1)));
  return ids;
}

void read_prompts(const Json& prompt, const RequestContext& context, TextRequest& out) {
  if (prompt.is_string()) {
    out.prompts.emplace_back(prompt.get<std::string>());
    return;
  }
  if (!prompt.is_array())
    refuse_field("prompt", "must be a string, a list of strings, token ids or lists of those", prompt);
  if (all_numbers(prompt)) {
    out.prompts.emplace_back(token_ids(prompt, "prompt", context));
    return;
  }
  if (prompt.empty() || prompt.size() > kMaxPrompts)
    refuse_field("prompt", fmt::format("must have 1..{} prompts", kMaxPrompts), prompt);
  for (size_t i = 0; i < prompt.size(); ++i) {
    const std::string field = fmt::format("prompt[{}]", i);
    if (prompt[i].is_string())
      out.prompts.emplace_back(prompt[i].get<std::string>());
    else if (prompt[i].is_array())
      out.prompts.emplace_back(token_ids(prompt[i], field, context));
    else
      refuse_field(field, "must be a string or a list of token ids", prompt[i]);
  }
}

}  // namespace

TextRequest parse_text_request(std::string_view body, const RequestContext& context) {
  static constexpr std::string_view kOwn[] = {"prompt", "logprobs", "echo", "best_of"};
  const Json json = parse_json(body);
  const FieldReader fields(json, "");
  TextRequest out;
  read_generation_fields(fields, context, kOwn, out);
  if (fields.boolean("echo").value_or(false)) refuse_field("echo", "is not supported by this server");
  if (const auto best_of = fields.integer("best_of", 1, 128); best_of && *best_of != out.n)
    refuse_field("best_of", fmt::format("other than n = {} is not supported by this server, got {}", out.n, *best_of));
  out.sampling.top_logprobs = static_cast<int>(fields.integer("logprobs", 0, kMaxLogprobs).value_or(-1));
  read_prompts(fields.need("prompt"), context, out);
  if (out.prompts.size() * static_cast<size_t>(out.n) > kMaxSequences)
    refuse_field("n",
                 fmt::format("prompts x n must be at most {}, got {} x {}", kMaxSequences, out.prompts.size(), out.n));
  return out;
}

}  // namespace mettle

#include "server/canary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_map.h"
#include "server/field_reader.h"
#include "server/generation.h"
#include "server/json_limits.h"
#include "server/openai_request.h"

namespace mettle {
namespace {

constexpr size_t kFileLimit = size_t{1} << 20;
constexpr int kExactTokens = 64;
constexpr int kSoundTokens = 32;
constexpr size_t kRepeats = 24;        // of one token in a row: it will not stop any more
constexpr double kUniformShare = 0.8;  // of ln(vocabulary): what random logits cost
constexpr std::string_view kSoundQuestion = "What is the capital of France?";
constexpr std::string_view kSoundPrompt = "The capital of France is";

[[noreturn]] void refuse(const std::string& what) { fail(Code::kDevice, "canary: " + what); }

GenerationRequest greedy(std::vector<int32_t> prompt, int tokens) {
  GenerationRequest request;
  request.prompts.push_back(std::move(prompt));
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  request.sampling.top_logprobs = 0;
  request.completion.logprobs = true;
  return request;
}

GenerationRequest chat(const TextModel& model, const Json& messages, int context, int tokens) {
  ChatPrompt prompt = model.chat(normalise_messages(messages), nullptr, {{"enable_thinking", false}}, context);
  GenerationRequest request = greedy(std::move(prompt.ids), tokens);
  request.completion.reply = ReplyParserOptions{.starts_in_reasoning = prompt.opens_reasoning};
  return request;
}

CompletionResult run(Engine& engine, const TextModel& model, GenerationRequest request, const std::string& name) {
  const CompletionResult result = complete(engine, model.tokenizer(), std::move(request));
  if (result.finish == Finish::kError) refuse(fmt::format("{} failed: {}", name, result.error));
  for (const TokenLogprob& p : result.logprobs)
    if (!std::isfinite(p.logprob)) refuse(fmt::format("{}: log probabilities must be finite, got {}", name, p.logprob));
  return result;
}

void ask(Engine& engine, const TextModel& model, const CanaryQuestion& q) {
  const int context = engine.info().context_length;
  const std::string name = fmt::format("\"{}\"", q.messages_json.empty() ? q.prompt : q.messages_json);
  const CompletionResult result =
      run(engine, model,
          q.messages_json.empty() ? greedy(model.encode(q.prompt, context, "prompt"), kExactTokens)
                                  : chat(model, parse_json(q.messages_json), context, kExactTokens),
          name);
  // A raw prompt goes on after its answer; a chat ends by itself.
  const bool right = q.messages_json.empty() ? result.content.starts_with(q.expect) : result.content == q.expect;
  if (!right) refuse(fmt::format("{} must be answered \"{}\", got \"{}\"", name, q.expect, result.content));
}

// For a model nobody told anything about: numbers that are numbers, some confidence, no token without end, and twice
// the same.
void check_sound(Engine& engine, const TextModel& model) {
  const int context = engine.info().context_length;
  const std::string name = fmt::format("\"{}\"", model.has_template() ? kSoundQuestion : kSoundPrompt);
  const auto once = [&] {
    if (!model.has_template())
      return run(engine, model, greedy(model.encode(kSoundPrompt, context, "prompt"), kSoundTokens), name);
    const Json messages = Json::array({{{"role", "user"}, {"content", kSoundQuestion}}});
    return run(engine, model, chat(model, messages, context, kSoundTokens), name);
  };
  const CompletionResult first = once();
  if (first.logprobs.empty()) refuse(name + " got an empty answer");
  double nats = 0;
  size_t run_length = 0, longest = 0;
  for (size_t i = 0; i < first.logprobs.size(); ++i) {
    nats -= first.logprobs[i].logprob;
    run_length = i > 0 && first.logprobs[i].token == first.logprobs[i - 1].token ? run_length + 1 : 1;
    longest = std::max(longest, run_length);
  }
  nats /= static_cast<double>(first.logprobs.size());
  const double limit = kUniformShare * std::log(static_cast<double>(engine.info().vocab_size));
  if (!(nats < limit))
    refuse(fmt::format("{}: the chosen tokens must cost less than {:.2f} nats each, got {:.2f}: the logits look random",
                       name, limit, nats));
  if (longest >= kRepeats)
    refuse(fmt::format("{}: one token came {} times in a row: \"{}\"", name, longest, first.content));
  const CompletionResult second = once();
  if (second.content != first.content || second.reasoning != first.reasoning)
    refuse(fmt::format("{} got two answers: \"{}\" and \"{}\"", name, first.content, second.content));
}

}  // namespace

std::vector<CanaryQuestion> read_canary_file(const std::string& path) {
  const std::string text = read_file(path, kFileLimit);
  std::vector<CanaryQuestion> questions;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      const Json json = parse_json(line);
      const FieldReader fields(json, "");
      CanaryQuestion q{.expect = text_of(fields.need("expect"), "expect")};
      if (const Json* messages = fields.array("messages")) {
        normalise_messages(*messages);
        q.messages_json = messages->dump();
      } else {
        q.prompt = text_of(fields.need("prompt"), "prompt");
      }
      questions.push_back(std::move(q));
    } catch (const Error& e) {
      fail(Code::kBadModel, fmt::format("{}:{}: {}", path, number, e.message));
    }
  }
  if (questions.empty()) fail(Code::kBadModel, path + ": must have at least one question, got none");
  return questions;
}

std::vector<CanaryQuestion> embedded_canaries() {
  const auto chat = [](const char* question, const char* answer) {
    const Json messages = Json::array({{{"role", "user"}, {"content", question}}});
    return CanaryQuestion{.messages_json = messages.dump(), .expect = answer};
  };
  return {
      chat("How much is 757 plus 95?", "852"),
      chat("What is 88 times 3?", "264"),
      chat("Spell the word tale.", "t-a-l-e"),
      chat("Which city is the capital of Guatemala?", "Guatemala City"),
      chat("Return a JSON object with keys country and capital. What is the capital of Laos?",
           R"({"country": "Laos", "capital": "Vientiane"})"),
  };
}

std::string run_canary(Engine& engine, const TextModel& model, const CanaryOptions& options) {
  if (engine.info().dummy_weights) {
    std::vector<int32_t> prompt;
    for (int32_t id = 0; id < std::min(8, engine.info().vocab_size); ++id) prompt.push_back(id);
    run(engine, model, greedy(std::move(prompt), 4), "dummy prompt");
    return "canary: finite logits; answers are not checked, the weights are dummies";
  }
  std::vector<CanaryQuestion> questions;
  if (options.embedded) questions = embedded_canaries();
  if (!options.file.empty()) {
    const std::vector<CanaryQuestion> own = read_canary_file(options.file);
    questions.insert(questions.end(), own.begin(), own.end());
  }
  try {
    for (const CanaryQuestion& q : questions) ask(engine, model, q);
    if (!options.embedded) check_sound(engine, model);
  } catch (const Error& e) {
    if (e.code != Code::kInvalidRequest) throw;
    // Of a request that nobody but us has made: a context too short for it.
    fail(e.code, "canary: a question cannot be asked: " + e.message);
  }
  return fmt::format("canary: {} exact answers{}", questions.size(), options.embedded ? "" : ", logits and text sound");
}

}  // namespace mettle

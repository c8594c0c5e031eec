// mettle run: one answer, or a chat in the terminal. The answer goes to standard output, everything else to standard
// error.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "checkpoint/model_folder.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "cli/prompt_line.h"
#include "cli/signals.h"
#include "server/generation.h"
#include "server/text_model.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPipeLimit = size_t{16} << 20;
constexpr int kInterrupted = 130;

struct RunOptions {
  ModelFlags model;
  std::string prompt, system;
  int max_tokens = 0;  // 0: the rest of the context
  std::optional<double> temperature, top_p;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  bool no_think = false, json = false, verbose = false;
};

void add_options(CLI::App& app, RunOptions& o) {
  app.add_option("prompt", o.prompt, "what to ask; without it a pipe's content, or a chat in the terminal");
  app.add_option("-m,--model,--model-path", o.model.model,
                 "folder, owner/name already downloaded, or nothing for the model that comes with mettle")
      ->check(not_empty());
  app.add_option("-s,--system", o.system, "system message");
  app.add_option("-n,--max-tokens", o.max_tokens, "tokens of an answer; 0: the rest of the context")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("-t,--temperature", o.temperature, "0: always the likeliest token; default: the model's")
      ->check(CLI::Range(0.0, 2.0));
  app.add_option("--top-p", o.top_p, "default: the model's")->check(CLI::Range(1e-6, 1.0));
  app.add_option("--top-k", o.top_k, "default: the model's; 0: all")->check(CLI::Range(0, 1 << 30));
  app.add_option("--seed", o.seed, "same seed, same answer")->check(whole_number());
  app.add_flag("--no-think", o.no_think, "answer without reasoning first");
  app.add_flag("--json", o.json, "one JSON object on standard output instead of text");
  app.add_flag("-v,--verbose", o.verbose, "say what happens while the model loads");
  add_model_flags(app, o.model);
  app.footer(
      "Examples:\n"
      "  mettle run \"What is 17 + 25?\" --temperature 0\n"
      "  echo \"Spell the word tale.\" | mettle run --no-think\n"
      "  mettle run                            a chat; Ctrl-C stops an answer, Ctrl-D leaves");
}

GenerationRequest request_for(const RunOptions& o, const TextModel& text, int context, const Json& messages) {
  const SamplingDefaults& d = text.sampling();
  GenerationRequest request;
  SamplingParams& s = request.sampling;
  s.temperature = o.temperature.value_or(d.temperature.value_or(1));
  s.top_p = o.top_p.value_or(d.top_p.value_or(1));
  s.top_k = o.top_k.value_or(d.top_k.value_or(0));
  s.min_p = d.min_p.value_or(0);
  s.repetition = d.repetition_penalty.value_or(1);
  s.seed = o.seed;
  s.max_tokens = o.max_tokens;
  request.max_tokens_given = o.max_tokens > 0;
  if (text.has_template()) {
    Json kwargs = Json::object();
    if (o.no_think) kwargs["enable_thinking"] = false;
    ChatPrompt prompt = text.chat(messages, nullptr, kwargs, context);
    request.completion.reply = ReplyParserOptions{.starts_in_reasoning = prompt.opens_reasoning};
    request.prompts.push_back(std::move(prompt.ids));
  } else {
    request.prompts.push_back(text.encode(messages.back()["content"].get<std::string>(), context, "prompt"));
  }
  return request;
}

// Writes an answer as it comes; reasoning dim on standard error.
class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}
  bool operator()(const CompletionDelta& delta) {
    if (!json_) {
      if (!delta.reply.reasoning.empty()) {
        say(paint(Colour::kDim, delta.reply.reasoning, colour_));
        reasoning_ = true;
      }
      if (!delta.reply.content.empty()) {
        if (reasoning_) say("\n");
        reasoning_ = false;
        std::fwrite(delta.reply.content.data(), 1, delta.reply.content.size(), stdout);
        std::fflush(stdout);
      }
    }
    return signals::received() == 0 && std::ferror(stdout) == 0;
  }
  void end() const {
    if (reasoning_) say("\n");
    if (!json_) std::fputs("\n", stdout);
    std::fflush(stdout);
  }

 private:
  const bool json_;
  const bool colour_ = wants_colour(2);
  bool reasoning_ = false;
};

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kError:
      return "error";
    case Finish::kNone:
      break;
  }
  return "none";
}

void print_json(const CompletionResult& r) {
  const Json json = {{"content", r.content},
                     {"reasoning_content", r.reasoning},
                     {"finish_reason", finish_name(r.finish)},
                     {"usage", {{"prompt_tokens", r.prompt_tokens}, {"completion_tokens", r.completion_tokens}}}};
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json first_messages(const RunOptions& o) {
  Json messages = Json::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  return messages;
}

Json messages_of(const RunOptions& o) {
  Json messages = first_messages(o);
  messages.push_back({{"role", "user"}, {"content", o.prompt}});
  return messages;
}

int answer_once(const RunOptions& o, const TextModel& text, Engine& engine) {
  const Json messages = messages_of(o);
  Printer print(o.json);
  const CompletionResult result =
      complete(engine, text.tokenizer(), request_for(o, text, engine.info().context_length, messages), std::ref(print));
  if (o.json)
    print_json(result);
  else
    print.end();
  if (result.finish == Finish::kError) fail(Code::kDevice, "run: " + result.error);
  return signals::received() > 0 ? kInterrupted : 0;
}

int chat(const RunOptions& o, const TextModel& text, Engine& engine) {
  PromptLine line("> ");
  Json messages = first_messages(o);
  say(fmt::format("{} - Ctrl-C stops an answer, Ctrl-D leaves\n", text.name()));
  for (;;) {
    signals::clear();
    const std::optional<std::string> question = line.read();
    if (!question) return 0;
    if (question->find_first_not_of(" \t") == std::string::npos) continue;
    messages.push_back({{"role", "user"}, {"content", *question}});
    Printer print(o.json);
    try {
      const CompletionResult result = complete(
          engine, text.tokenizer(), request_for(o, text, engine.info().context_length, messages), std::ref(print));
      if (o.json)
        print_json(result);
      else
        print.end();
      if (result.finish == Finish::kError) fail(Code::kDevice, "run: " + result.error);
      messages.push_back({{"role", "assistant"}, {"content", result.content}});
    } catch (const Error& e) {  // too long, or the template said no: the chat goes on without it
      if (e.code != Code::kInvalidRequest) throw;
      say(fmt::format("{}\n", e.message));
      messages.erase(messages.size() - 1);
    }
  }
}

std::string read_pipe() {
  std::string text;
  char buffer[65536];
  while (text.size() <= kPipeLimit) {
    const size_t n = std::fread(buffer, 1, sizeof buffer, stdin);
    if (n == 0) break;
    text.append(buffer, n);
  }
  if (text.size() > kPipeLimit)
    fail(Code::kInvalidRequest, fmt::format("prompt: at most {} bytes from a pipe", kPipeLimit));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (text.empty())
    fail(Code::kInvalidRequest, "prompt: must have at least one character, got none from standard input");
  return text;
}

}  // namespace

int command_run(int argc, char** argv) {
  RunOptions o;
  CLI::App app("One answer, or a chat in the terminal.", "mettle run");
  add_options(app, o);
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  if (!o.verbose) log::set_level(log::Level::kWarn);
  const bool prompt_given = app.get_option("prompt")->count() > 0;
  if (prompt_given && o.prompt.empty())
    fail(Code::kInvalidRequest, "prompt: must have at least one character, got \"\"");
  const bool interactive = !prompt_given && isatty(STDIN_FILENO) != 0;
  if (!prompt_given && !interactive) o.prompt = read_pipe();
  const ModelFolder folder = open_model_folder(find_model(o.model.model));
  const TextModel text(folder);
  // A prompt that the given length cannot hold is told before anything is proved or loaded.
  if (const int context = o.model.engine.context_length; context > 0 && !interactive)
    request_for(o, text, context, messages_of(o));
  resolve(o.model);
  o.model.engine.on_progress = progress_on_stderr();
  o.model.engine.max_running = std::min(o.model.engine.max_running, 1);

  const std::unique_ptr<Engine> engine = Engine::start(o.model.engine);
  signals::install(interactive ? signals::Use::kChat : signals::Use::kServe);
  return interactive ? chat(o, text, *engine) : answer_once(o, text, *engine);
}

}  // namespace mettle

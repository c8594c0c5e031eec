// mettle serve: binds, proves, loads, asks the canaries, says ready, serves until a signal, drains. When the engine
// ends by itself (its device is lost) it answers what is open and exits with 1, for its supervisor to start it again.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/model_folder.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "cli/signals.h"
#include "server/api.h"
#include "server/canary.h"
#include "server/http.h"
#include "server/text_model.h"

namespace mettle {
namespace {

struct ServeOptions {
  ModelFlags model;
  HttpOptions http{.port = 30000};
  std::string served_name, api_key, canary_file, guard = "finite";
  double drain_seconds = 30;
};

// HTTP strips spaces at the ends of a field and has no control characters: with such a key nobody could ask anything.
// The usual one is the line feed at the end of a file. The key itself is not told.
CLI::Validator sendable() {
  return {[](const std::string& key) -> std::string {
            const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
            if (std::any_of(key.begin(), key.end(), control))
              return "must hold no line feed or other control character";
            if (key.starts_with(' ') || key.ends_with(' ')) return "must not begin or end with a space";
            return "";
          },
          ""};
}

void add_options(CLI::App& app, ServeOptions& o) {
  app.add_option("model,--model-path,--model", o.model.model,
                 "folder, owner/name already downloaded, or nothing for the model that comes with mettle")
      ->check(not_empty());
  app.add_option("--host", o.http.host, "address to listen at")->check(not_empty())->capture_default_str();
  app.add_option("--port", o.http.port, "port; 0 picks a free one")->check(CLI::Range(0, 65535))->capture_default_str();
  app.add_option("--served-model-name", o.served_name, "name in /v1/models; default: the model's")->check(not_empty());
  app.add_option("--api-key", o.api_key, "key that every request but health must carry")
      ->check(not_empty())
      ->check(sendable());
  add_model_flags(app, o.model);
  app.add_option("--max-queued-requests", o.model.engine.max_waiting, "requests that may wait; more get 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--seed,--random-seed", o.model.engine.dummy_seed, "of dummy weights")
      ->check(whole_number())
      ->capture_default_str();
  app.add_option("--canary", o.canary_file, "JSON lines {\"messages\" or \"prompt\", \"expect\"} to ask before ready")
      ->check(CLI::ExistingFile);
  app.add_option("--guard", o.guard,
                 "off; finite: a request with values that are not finite ends with an error, a backend that gives them "
                 "again and again is replaced; spot: besides, what serves is proved again in idle moments")
      ->check(CLI::IsMember({"off", "finite", "spot"}))
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  mettle serve                          the model that comes with mettle, port 30000\n"
      "  mettle serve /models/qwen --port 8000 --api-key secret\n"
      "  curl localhost:30000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}]}'");
}

// Each connection is a file descriptor, and the usual soft limit of 1024 is less than what we accept.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

int command_serve(int argc, char** argv) {
  ServeOptions o;
  CLI::App app("OpenAI-compatible server.", "mettle serve");
  add_options(app, o);
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  resolve(o.model);
  o.model.engine.guard = o.guard == "off" ? Guard::kOff : o.guard == "spot" ? Guard::kSpot : Guard::kFinite;
  o.model.engine.on_progress = progress_on_stderr();
  o.model.engine.on_stopped = signals::stop_waiting;
  raise_file_limit();

  // The port is taken before minutes go into proofs and loading.
  std::unique_ptr<Api> api;
  HttpServer http(o.http, [&api](const std::shared_ptr<Exchange>& exchange) { api->handle(exchange); });
  if (!o.canary_file.empty()) read_canary_file(o.canary_file);
  const ModelFolder folder = open_model_folder(o.model.engine.model_path);
  const TextModel text(folder);
  const std::unique_ptr<Engine> engine = Engine::start(o.model.engine);
  log::info("{}", run_canary(*engine, text, {.embedded = is_embedded(o.model), .file = o.canary_file}));
  api = std::make_unique<Api>(ApiOptions{.served_name = o.served_name,
                                         .api_key = o.api_key,
                                         .local_hosts = o.api_key.empty() && http.is_loopback(),
                                         .connections = [&http] { return http.connections(); }},
                              *engine, text);

  signals::install(signals::Use::kServe);
  http.start();
  fmt::print("ready {}\n", http.url());
  std::fflush(stdout);

  signals::wait();
  const EngineStats stats = engine->stats();
  if (stats.healthy)
    log::info("server: draining; a second signal ends at once");
  else
    log::error("server: ends, its engine has stopped: {}", stats.unhealthy_why);
  api->drain();
  http.drain();
  engine->drain(stats.healthy ? o.drain_seconds : 0);
  http.stop(std::chrono::seconds(5));
  log::info("server: stopped");
  if (stats.healthy) return 0;
  // A driver may wait for a lost device without an end when its memory is given back.
  if (engine->info().device.kind != DeviceKind::kCpu) leave(1);
  return 1;
}

}  // namespace mettle

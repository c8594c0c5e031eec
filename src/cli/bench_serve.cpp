// mettle bench serve: load on a server that speaks the OpenAI API, ours or another.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file_map.h"
#include "base/terminal.h"
#include "checkpoint/model_folder.h"
#include "cli/bench.h"
#include "cli/model_flags.h"
#include "load/dataset.h"
#include "load/report.h"
#include "server/text_model.h"

namespace mettle {
namespace {

constexpr int kMostLevels = 32, kMostInFlight = 1024;

struct Word {
  const char *word, *means;
};
// Names that sglang.bench_serving and vllm bench serve have for the same thing.
constexpr Word kBackends[] = {{"chat", "chat"},          {"completions", "completions"}, {"openai-chat", "chat"},
                              {"openai", "completions"}, {"sglang-oai-chat", "chat"},    {"sglang-oai", "completions"},
                              {"vllm-chat", "chat"},     {"vllm", "completions"}};
constexpr Word kDatasets[] = {{"random", "random"},
                              {"shared-prefix", "shared-prefix"},
                              {"multi-turn", "multi-turn"},
                              {"file", "file"},
                              {"generated-shared-prefix", "shared-prefix"},
                              {"prefix_repetition", "shared-prefix"},
                              {"sharegpt", "file"},
                              {"custom", "file"}};

template <size_t N>
std::string meaning(const Word (&words)[N], const std::string& word) {
  for (const Word& w : words)
    if (word == w.word) return w.means;
  return "";
}
template <size_t N>
CLI::Validator one_of(const Word (&words)[N]) {
  std::string all;
  for (const Word& w : words) all += fmt::format("{}{}", all.empty() ? "" : ", ", w.word);
  return {[all, &words](std::string& value) {
            return meaning(words, value).empty() ? fmt::format("must be one of {}; got \"{}\"", all, value)
                                                 : std::string();
          },
          ""};
}

struct ServeBench {
  std::string url, backend = "chat", dataset = "random", rate = "inf", tokenizer, json, html;
  LoadOptions load;
  DatasetOptions data;
  std::vector<int> concurrency;
  std::vector<std::string> goodput;
  int requests = 0, max_concurrency = 0, warmup = 1, repeats = 1;
  bool details = false, no_stream = false;
  ClientLimits limits;
};

void add_flags(CLI::App& app, ServeBench& b) {
  app.add_option("URL,--base-url", b.url, "of the server: http://127.0.0.1:8000, with or without /v1")
      ->check(not_empty());
  app.add_option("--model,--served-model-name", b.load.model, "default: the first that the server lists")
      ->check(not_empty());
  app.add_option("--backend", b.backend, "chat or completions; words of other tools are understood")
      ->check(one_of(kBackends))
      ->capture_default_str();
  app.add_option("--dataset,--dataset-name", b.dataset, "random, shared-prefix, multi-turn or file")
      ->check(one_of(kDatasets))
      ->capture_default_str();
  app.add_option("--dataset-path", b.data.path, "of the file: JSON lines {prompt, output_tokens}, or ShareGPT")
      ->check(not_empty());
  app.add_option("--num-prompts", b.requests,
                 "requests at each level; default: four for each in flight, at least 16; 100 at a rate")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--random-input-len,--input-len", b.data.input_tokens, "tokens of a prompt, or of a turn")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--random-output-len,--output-len", b.data.output_tokens, "tokens of an answer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--random-range-ratio", b.data.range, "lengths from (1 - r) to (1 + r) times the length")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  app.add_option("--prefix-len,--gsp-system-prompt-len,--prefix-repetition-prefix-len", b.data.prefix_tokens,
                 "shared-prefix: tokens that prompts have in common")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--num-prefixes,--gsp-num-groups,--prefix-repetition-num-prefixes", b.data.prefixes,
                 "shared-prefix: how many there are")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--turns", b.data.turns, "multi-turn: questions of a conversation")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--concurrency", b.concurrency,
                 "requests in flight, one column for each: 1,8,64; default: 1,8 without a rate")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, kMostInFlight));
  app.add_option("--request-rate", b.rate, "requests/s whatever the server does; inf: all at once")
      ->capture_default_str();
  app.add_option("--burstiness", b.load.burstiness, "1: Poisson arrivals; less comes in bursts, more is even (gamma)")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  app.add_option("--max-concurrency", b.max_concurrency, "most in flight; what is due beyond is held back")
      ->check(CLI::Range(1, kMostInFlight));
  app.add_option("--warmup,--num-warmups,--warmup-requests", b.warmup, "requests before each level, not counted")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  app.add_option("--repeats", b.repeats, "of each level with new prompts; two and more give 95 % confidence")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--goodput", b.goodput, "goals of a request in ms: ttft:500 tpot:50 e2el:2000")->expected(1, 4);
  app.add_option("--temperature", b.load.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  app.add_flag("--ignore-eos,!--disable-ignore-eos", b.load.ignore_eos, "ask for answers of full length (default)");
  app.add_flag("--disable-stream", b.no_stream, "answers in one piece; TTFT is then E2E latency");
  app.add_option("--api-key", b.load.api_key, "default: OPENAI_API_KEY")->check(not_empty());
  app.add_option("--tokenizer", b.tokenizer,
                 "model folder: prompts of exact length, counts checked against the server's")
      ->check(not_empty());
  app.add_option("--json,--output-file", b.json, "one JSON object a line for each level; - for standard output")
      ->check(not_empty());
  app.add_flag("--save-detailed,--output-details", b.details, "in the JSON: times and texts of each request");
  app.add_option("--html", b.html, "a page with tables and plots")->check(not_empty());
  app.add_option("--seed", b.data.seed, "of prompts and arrivals")->check(whole_number())->capture_default_str();
  app.add_option("--timeout", b.load.request_seconds, "seconds that one request may take")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  app.add_option("--max-client-cpu", b.limits.cpu, "share of its cores above which the client is the bottleneck")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--max-client-lag", b.limits.lag_ms, "ms late at one moment of a hundred above which it is, too")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
}

double number_of(const std::string& text, const char* name, const char* like) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
    fail(Code::kInvalidRequest, fmt::format("{}: must be like {}, got \"{}\"", name, like, text));
  return value;
}

Goals goals_of(const std::vector<std::string>& words) {
  Goals goals;
  for (const std::string& word : words) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    double* goal = name == "ttft"   ? &goals.ttft_ms
                   : name == "tpot" ? &goals.tpot_ms
                   : name == "e2el" ? &goals.e2e_ms
                                    : nullptr;
    if (goal == nullptr || colon == std::string::npos)
      fail(Code::kInvalidRequest, fmt::format("--goodput: must be of ttft:MS, tpot:MS, e2el:MS, got \"{}\"", word));
    *goal = number_of(word.substr(colon + 1), "--goodput", "ttft:500");
  }
  return goals;
}

// Before hours of load, not after them.
void check_folder(const std::string& file, const char* flag) {
  if (file.empty() || file == "-") return;
  const std::filesystem::path path(file), folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec))
    fail(Code::kInvalidRequest, fmt::format("{}: must be a file, {} is a folder", flag, file));
  if (!std::filesystem::is_directory(folder, ec) || access(folder.c_str(), W_OK) != 0)
    fail(Code::kInvalidRequest, fmt::format("{}: must be in a folder that can be written, got {}", flag, file));
}

// The levels that were asked for, without runs.
std::vector<LoadLevel> levels_of(ServeBench& b) {
  const bool all_at_once = b.rate == "inf";
  const double rate = all_at_once ? 0 : number_of(b.rate, "--request-rate", "2.5 or inf");
  if (!all_at_once && (rate <= 0 || rate > 1e6))
    fail(Code::kInvalidRequest, fmt::format("--request-rate: must be above 0 and at most 1e6, or inf, got {}", b.rate));
  if (!all_at_once && !b.concurrency.empty())
    fail(Code::kInvalidRequest,
         "--concurrency: must stand without --request-rate; the most in flight at a rate is "
         "--max-concurrency");
  if (!b.concurrency.empty() && b.max_concurrency > 0)
    fail(Code::kInvalidRequest, "--max-concurrency: must stand without --concurrency");
  if (all_at_once && b.load.burstiness != 1)
    fail(Code::kInvalidRequest,
         fmt::format("--burstiness: must stand with a --request-rate, got {} and inf", b.load.burstiness));
  std::vector<LoadLevel> levels;
  if (!all_at_once) {
    b.load.arrival = b.load.burstiness == 1 ? Arrival::kPoisson : Arrival::kGamma;
    b.load.rate = rate;
    levels.push_back({.name = fmt::format("{:g} req/s", rate),
                      .concurrency = b.max_concurrency > 0 ? b.max_concurrency : kMostInFlight,
                      .rate = rate,
                      .burstiness = b.load.burstiness});
    return levels;
  }
  if (b.concurrency.empty()) b.concurrency = b.max_concurrency > 0 ? std::vector{b.max_concurrency} : std::vector{1, 8};
  if (b.concurrency.size() > kMostLevels)
    fail(Code::kInvalidRequest,
         fmt::format("--concurrency: must have at most {} levels, got {}", kMostLevels, b.concurrency.size()));
  for (const int concurrency : b.concurrency)
    levels.push_back({.name = fmt::format("{}", concurrency), .concurrency = concurrency});
  return levels;
}

std::vector<LoadPrompt> prompts_of(const ServeBench& b, int count, uint64_t salt) {
  DatasetOptions data = b.data;
  data.count = count;
  data.seed += salt * 0x9E3779B97F4A7C15;  // prompts that no cache of the server has seen
  return make_dataset(data);
}

// The server's counts against ours. Later turns hold answers of the server and are left out.
void check_tokens(TokenCheck& check, const TextModel& model, bool chat, const std::vector<LoadPrompt>& prompts,
                  const LoadRun& run) {
  constexpr int kAnyContext = 1 << 30;
  std::vector<int> begun;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const LoadRequest& r = run.requests[i];
    const bool first = prompts[i].conversation < 0 || begun.empty() || begun.back() != prompts[i].conversation;
    if (prompts[i].conversation >= 0) begun.push_back(prompts[i].conversation);
    if (!r.error.empty()) continue;
    if (first && r.input_tokens > 0 && (!chat || model.has_template())) {
      nlohmann::ordered_json messages = nlohmann::ordered_json::array();
      messages.push_back({{"role", "user"}, {"content", prompts[i].text}});
      const size_t ours = chat ? model.chat(messages, nullptr, nlohmann::ordered_json::object(), kAnyContext).ids.size()
                               : model.encode(prompts[i].text, kAnyContext, "prompt").size();
      ++check.input_compared;
      check.input_differ += ours != static_cast<size_t>(r.input_tokens);
    }
    if (r.output_tokens > 0) {
      const size_t ours = model.tokenizer().encode(r.text, AddedTokens::kAsTokens).size();
      ++check.output_compared;
      check.output_retokenized += static_cast<int64_t>(ours);
      check.output_differ += ours != static_cast<size_t>(r.output_tokens);
    }
  }
}

LoadRun loaded(ServeBench& b, const std::string& what, const std::vector<LoadPrompt>& prompts) {
  Progress bar(what, prompts.size());
  b.load.on_progress = [&](size_t done, size_t) { bar.set(done); };
  LoadRun run = run_load(b.load, prompts);
  b.load.on_progress = nullptr;
  return run;
}

// " 3 of 4 requests failed, the first: ..."; empty when all went well.
std::string failures_text(const LoadRun& run) {
  const auto failed = [](const LoadRequest& r) { return !r.error.empty(); };
  const auto count = std::count_if(run.requests.begin(), run.requests.end(), failed);
  if (count == 0) return "";
  return fmt::format(" {} of {} requests failed, the first: {}", count, run.requests.size(),
                     std::find_if(run.requests.begin(), run.requests.end(), failed)->error);
}

// Runs one level. False, with the reason said, when its figures would be about the client.
bool measure(ServeBench& b, LoadLevel& level, const TextModel* model, uint64_t salt) {
  const int count = b.requests > 0 ? b.requests : std::max(16, level.rate > 0 ? 100 : 4 * level.concurrency);
  b.load.concurrency = std::min(level.concurrency, count);
  if (b.warmup > 0) {
    const Arrival arrival = b.load.arrival;
    b.load.arrival = Arrival::kClosed;
    const int in_flight = b.load.concurrency;
    b.load.concurrency = std::min(in_flight, b.warmup);
    const LoadRun run = loaded(b, "warm-up", prompts_of(b, b.warmup, ++salt));
    b.load.arrival = arrival;
    b.load.concurrency = in_flight;
    if (std::all_of(run.requests.begin(), run.requests.end(), [](const LoadRequest& r) { return !r.error.empty(); }))
      fail(Code::kDevice,
           fmt::format("warm-up: one of {} requests must go well, none did: {}", b.warmup, run.requests.front().error));
  }
  for (int repeat = 0; repeat < b.repeats; ++repeat) {
    const std::vector<LoadPrompt> prompts = prompts_of(b, count, ++salt);
    b.load.seed = b.data.seed + static_cast<uint64_t>(repeat);
    LoadRun run = loaded(b, level.rate > 0 ? level.name : "in flight: " + level.name, prompts);
    std::string why = client_limit(run, b.limits);
    if (why.empty() && run.held_back > 0 && level.rate > 0 && b.max_concurrency == 0)
      why = fmt::format("{} requests were due while {} were in flight, the most that there may be", run.held_back,
                        level.concurrency);
    if (!why.empty()) {
      say(fmt::format(
          "{}: no figures, this client was the bottleneck: {}. They would tell of this machine, not of the server: "
          "ask for less, or run it elsewhere.{}\n",
          level.rate > 0 ? level.name : level.name + " in flight", why, failures_text(run)));
      return false;
    }
    if (model != nullptr) check_tokens(level.check, *model, b.load.chat, prompts, run);
    for (size_t i = 0; i < prompts.size(); ++i) {
      LoadRequest& r = run.requests[i];
      level.check.output_over_asked += r.error.empty() && r.output_tokens > prompts[i].output_tokens;
      if (r.input_tokens == 0) r.input_tokens = prompts[i].input_tokens;  // a server without usage: what we know
    }
    level.repeats.push_back(std::move(run));
  }
  return true;
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::optional<TextModel> text_model(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  return TextModel(open_model_folder(find_model(folder)));
}

int write_report(const ServeBench& b, const LoadReport& report) {
  if (b.json == "-")
    fmt::print("{}", report_json(report, b.details));
  else
    fmt::print("{}", report_text(report, wants_colour(1)));
  if (!b.json.empty() && b.json != "-") write_file_atomically(b.json, report_json(report, b.details));
  if (!b.html.empty()) write_file_atomically(b.html, report_html(report));
  const auto went_well = [](const LoadLevel& level) { return figures_of(together(level.repeats)).completed > 0; };
  return std::any_of(report.levels.begin(), report.levels.end(), went_well) ? 0 : 1;
}

}  // namespace

int bench_serve(int argc, char** argv) {
  ServeBench b;
  CLI::App app(
      "Load on a server that speaks the OpenAI API: figures named as sglang.bench_serving and vllm bench serve name\n"
      "them. Exit code 1 when no request went well, or when this client was the bottleneck: then there are no figures.",
      "mettle bench serve");
  app.footer(
      "Examples:\n  mettle bench serve http://127.0.0.1:8000 --concurrency 1,8,64\n"
      "  mettle bench serve http://127.0.0.1:30000 --request-rate 4 --goodput ttft:500 tpot:50\n"
      "  mettle bench serve http://127.0.0.1:8080 --backend completions --tokenizer /models/qwen \\\n"
      "      --dataset shared-prefix --concurrency 1,16 --repeats 3 --json run.jsonl --html run.html");
  add_flags(app, b);
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  // The list of goals takes what follows it, a URL at the end as well.
  if (b.url.empty() && !b.goodput.empty() && b.goodput.back().find("://") != std::string::npos) {
    b.url = b.goodput.back();
    b.goodput.pop_back();
  }
  if (b.url.empty()) fail(Code::kInvalidRequest, "URL: must name a server, for instance http://127.0.0.1:8000");
  b.backend = meaning(kBackends, b.backend);
  b.dataset = meaning(kDatasets, b.dataset);
  LoadReport report{.backend = b.backend, .dataset = b.dataset, .tokenizer = b.tokenizer, .date = now_text()};
  report.goals = goals_of(b.goodput);
  report.seed = b.data.seed;
  std::vector<LoadLevel> levels = levels_of(b);
  check_folder(b.json, "--json");
  check_folder(b.html, "--html");
  if ((b.dataset == "file") != !b.data.path.empty())
    fail(Code::kInvalidRequest, fmt::format("--dataset-path: must be given with --dataset file and only then, got {}",
                                            b.data.path.empty() ? "none" : b.data.path));
  b.data.kind = b.dataset == "file"            ? DatasetKind::kFile
                : b.dataset == "multi-turn"    ? DatasetKind::kMultiTurn
                : b.dataset == "shared-prefix" ? DatasetKind::kSharedPrefix
                                               : DatasetKind::kRandom;
  b.load.base_url = b.url;
  b.load.chat = b.backend == "chat";
  b.load.stream = !b.no_stream;
  if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr && b.load.api_key.empty()) b.load.api_key = key;
  const std::optional<TextModel> model = text_model(b.tokenizer);
  if (model) b.data.tokenizer = &model->tokenizer();

  bool refused = false;
  for (size_t i = 0; i < levels.size(); ++i) {
    if (measure(b, levels[i], model ? &*model : nullptr, i * 1000))
      report.levels.push_back(std::move(levels[i]));
    else
      refused = true;
  }
  if (report.levels.empty()) return 1;
  report.url = report.levels.front().repeats.front().url;
  report.model = report.levels.front().repeats.front().model;
  const int code = write_report(b, report);
  return refused ? 1 : code;
}

}  // namespace mettle

// mettle bench offline: the table that users of llama-bench know.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/bench.h"
#include "cli/bench_engine.h"
#include "cli/model_flags.h"

namespace mettle {
namespace {

struct OfflineBench {
  ModelFlags model;
  std::vector<int> prompt = {512}, generate = {128}, batch = {1};
  int repetitions = 5;
  bool json = false;
};

struct Test {
  int prompt = 0, generate = 0, batch = 1;  // one of prompt and generate is 0
  std::vector<double> seconds, tokens_per_second;
};

struct Spread {
  double mean = 0, deviation = 0;  // of a sample
};
Spread spread_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  Spread s{std::accumulate(values.begin(), values.end(), 0.0) / n, 0};
  if (values.size() < 2) return s;
  double squares = 0;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  s.deviation = std::sqrt(squares / (n - 1));
  return s;
}

std::string name_of(const Test& t) {
  std::string name = t.prompt > 0 ? fmt::format("pp{}", t.prompt) : fmt::format("tg{}", t.generate);
  if (t.batch > 1) name += fmt::format(" x {}", t.batch);
  return name;
}

// Once more for itself first: the first steps of an engine touch what the others find warm.
void measure(Engine& engine, Test& test, int repetitions) {
  constexpr int kShortPrompt = 8;
  const int vocab = engine.info().vocab_size, length = test.prompt > 0 ? test.prompt : kShortPrompt;
  for (int i = -1; i < repetitions; ++i) {
    std::vector<std::vector<int32_t>> prompts;
    for (int b = 0; b < test.batch; ++b)
      prompts.push_back(random_ids(length, vocab, static_cast<unsigned>(1000 * (i + 2) + b)));
    const EngineTimes t = time_together(engine, prompts, test.prompt > 0 ? 1 : test.generate + 1);
    if (i < 0) continue;
    const double seconds = test.prompt > 0 ? t.first_s : t.rest_s;
    const double tokens =
        test.prompt > 0 ? static_cast<double>(test.prompt) * test.batch : static_cast<double>(t.tokens_in_rest);
    test.seconds.push_back(seconds);
    test.tokens_per_second.push_back(seconds > 0 ? tokens / seconds : 0);
  }
}

// As Markdown, as llama-bench prints it.
std::string table_text(const EngineInfo& info, const std::vector<Test>& tests) {
  std::vector<std::vector<std::string>> rows = {{"model", "size", "device", "threads", "test", "t/s"}};
  for (const Test& t : tests) {
    const Spread s = spread_of(t.tokens_per_second);
    rows.push_back({info.model_name, fmt::format("{:.2f} GiB", static_cast<double>(info.weight_bytes) / (1 << 30)),
                    info.device.model, fmt::format("{}", info.threads), name_of(t),
                    fmt::format("{:.2f} ± {:.2f}", s.mean, s.deviation)});
  }
  const auto width = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  std::vector<std::ptrdiff_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const std::string pad(static_cast<size_t>(widths[c] - width(rows[r][c])), ' ');
      const bool right = c == 1 || c >= 3;
      text += "| " + (right ? pad + rows[r][c] : rows[r][c] + pad) + " ";
    }
    text += "|\n";
    if (r > 0) continue;
    for (size_t c = 0; c < widths.size(); ++c)
      text += "|" + std::string(static_cast<size_t>(widths[c]) + 1, '-') + (c == 1 || c >= 3 ? ":" : "-");
    text += "|\n";
  }
  return text;
}

std::string tests_json(const EngineInfo& info, const std::vector<Test>& tests) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Test& t : tests) {
    std::vector<double> nanoseconds;
    for (const double s : t.seconds) nanoseconds.push_back(s * 1e9);
    const Spread ns = spread_of(nanoseconds), ts = spread_of(t.tokens_per_second);
    list.push_back({{"test", name_of(t)},
                    {"model_type", info.model_name},
                    {"model_size", info.weight_bytes},
                    {"device", info.device.model},
                    {"dummy_weights", info.dummy_weights},
                    {"n_threads", info.threads},
                    {"tp_size", info.tp_size},
                    {"n_prompt", t.prompt},
                    {"n_gen", t.generate},
                    {"n_seqs", t.batch},
                    {"avg_ns", ns.mean},
                    {"stddev_ns", ns.deviation},
                    {"avg_ts", ts.mean},
                    {"stddev_ts", ts.deviation},
                    {"samples_ns", nanoseconds},
                    {"samples_ts", t.tokens_per_second}});
  }
  return list.dump(1) + "\n";
}

// Sequences that wait for others to end would make the figure of a batch one of smaller batches.
void check_together(const EngineInfo& info, const Test& t) {
  const int64_t tokens = std::max(t.prompt + 1, t.generate + 9);
  int64_t fit = info.blocks / ((tokens + info.block_size - 1) / info.block_size);
  if (info.state_slots > 0) fit = std::min(fit, info.state_slots);
  if (t.batch > fit)
    fail(Code::kInvalidRequest,
         fmt::format(
             "--batch: at most {} sequences of {} tokens fit into the cache at once (--max-total-tokens), got {}", fit,
             tokens, t.batch));
}

}  // namespace

int bench_offline(int argc, char** argv) {
  OfflineBench b;
  CLI::App app(
      "Tokens per second of the engine in this process, without a server: prompt processing (pp) and token\n"
      "generation (tg), mean and deviation. With a batch of B, B sequences run together and t/s is of all of them.",
      "mettle bench offline");
  app.add_option("model,--model,--model-path", b.model.model,
                 "folder, owner/name already downloaded, or nothing for the model that comes with mettle")
      ->check(not_empty());
  const auto numbers = [&](const char* names, std::vector<int>& to, int least, int most, const char* what) {
    app.add_option(names, to, what)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(least, most))
        ->capture_default_str();
  };
  numbers("-p,--pp,--n-prompt", b.prompt, 0, 1 << 24, "tokens of the prompts; 0: no such test");
  numbers("-n,--tg,--n-gen", b.generate, 0, 1 << 24, "tokens generated; 0: no such test");
  numbers("--batch", b.batch, 1, 4096, "sequences at once: 1,8");
  app.add_option("-r,--repetitions", b.repetitions, "of each test")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_flag("--json", b.json, "a JSON array on standard output; keys as llama-bench names them");
  add_model_flags(app, b.model);
  app.footer(
      "Examples:\n  mettle bench offline\n  mettle bench offline /models/qwen --pp 512,2048 --tg 128 --batch 1,8\n"
      "  mettle bench offline shapes/ --load-format dummy --json");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  std::vector<Test> tests;
  for (const int batch : b.batch) {
    for (const int prompt : b.prompt)
      if (prompt > 0) tests.push_back({.prompt = prompt, .batch = batch});
    for (const int generate : b.generate)
      if (generate > 0) tests.push_back({.generate = generate, .batch = batch});
  }
  if (tests.empty()) fail(Code::kInvalidRequest, "--pp, --tg: one must be above 0, got 0 for both");
  resolve(b.model);
  EngineOptions& options = b.model.engine;
  options.max_running = std::max(options.max_running, *std::max_element(b.batch.begin(), b.batch.end()));
  options.on_progress = progress_on_stderr();
  const auto engine = Engine::start(options);
  const int longest = engine->info().context_length;
  for (const Test& t : tests)
    if (std::max(t.prompt + 1, t.generate + 9) > longest)
      fail(Code::kInvalidRequest, fmt::format("{}: must fit into the context of {} tokens", name_of(t), longest));
  for (const Test& t : tests) check_together(engine->info(), t);
  Progress bar("bench", tests.size());
  for (size_t i = 0; i < tests.size(); ++i) {
    bar.set(i, name_of(tests[i]));
    measure(*engine, tests[i], b.repetitions);
  }
  bar.set(tests.size());
  fmt::print("{}", b.json ? tests_json(engine->info(), tests) : table_text(engine->info(), tests));
  return 0;
}

}  // namespace mettle

// Tokens per second of the whole engine without a server:
//   offline_bench CONFIG_FOLDER [--device D] [--threads N] [--real] [--rows 1,32] [--prompt N] [--new N] [--json FILE]
//   offline_bench CONFIG_FOLDER --device cuda --moe-product 128,256,512 [--json FILE]
// Weights are dummies unless --real. Decode with each number of rows of distinct prompts, prefill of one prompt. For
// each number of rows also how many different experts a layer reads in a step, against what rows that route on their
// own would read: counted after the measurement, in as many steps of the same prompts. The program is its own proof
// child.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <span>
#include <sstream>

#include "base/error.h"
#include "cli/bench_engine.h"
#include "engine/engine.h"
#include "engine/probe.h"
#include "moe_product.h"
#include "ops/moe.h"
#include "tensor/gpu.h"
#include "probe.h"

namespace mettle {
namespace {

struct Options {
  EngineOptions engine;
  int prompt = 512, decode_new = 128;
  std::vector<int> rows = {1, 32}, moe_product;
  std::string json;
};

// Comma-separated, each at least 1.
std::vector<int> numbers(const std::string& name, const std::string& text) {
  std::vector<int> all;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) {
    all.push_back(std::atoi(part.c_str()));
    if (all.back() < 1) fail(Code::kInvalidRequest, name + ": must be numbers like 128,256, got " + text);
  }
  return all;
}

Options parse(int argc, char** argv) {
  Options o;
  o.engine.dummy_weights = true;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) fail(Code::kInvalidRequest, arg + ": must have a value");
      return argv[++i];
    };
    if (arg == "--device")
      o.engine.device = value();
    else if (arg == "--rows") {
      o.rows = numbers(arg, value());
      o.engine.max_running = std::max(o.engine.max_running, *std::max_element(o.rows.begin(), o.rows.end()));
    } else if (arg == "--step-tokens")
      o.engine.step_tokens = std::stoi(value());
    else if (arg == "--threads")
      o.engine.threads = std::stoi(value());
    else if (arg == "--real")
      o.engine.dummy_weights = false;
    else if (arg == "--prompt")
      o.prompt = std::stoi(value());
    else if (arg == "--new")
      o.decode_new = std::stoi(value());
    else if (arg == "--moe-product")
      o.moe_product = numbers(arg, value());
    else if (arg == "--json")
      o.json = value();
    else if (arg.starts_with("--"))
      fail(Code::kInvalidRequest,
           arg + ": must be one of --device --rows --step-tokens --threads --real --prompt --new --moe-product --json");
    else
      o.engine.model_path = arg;
  }
  if (o.engine.model_path.empty()) fail(Code::kInvalidRequest, "CONFIG_FOLDER: must be given");
  return o;
}

template <class F>
double median_of(int runs, F&& f) {
  std::vector<double> values;
  for (int i = 0; i < runs; ++i) values.push_back(f(i));
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of /proc/self/status, bytes: RssAnon, anonymous memory now; VmHWM, the most that was resident, mapped files included.
int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kilobytes = 0;
  while (status >> word)
    if (word == field + ":") status >> kilobytes;
  return kilobytes * 1024;
}

// Greedy tokens after a prompt: a checkpoint and the dummy weights that it was written from say the same.
std::vector<int32_t> greedy_tokens(Engine& engine, std::vector<int32_t> prompt, int count) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = count;
  params.ignore_eos = true;
  std::vector<int32_t> tokens;
  std::atomic<bool> done{false};
  engine.submit(std::move(prompt), params, [&](const TokenEvent& event) {
    if (event.token >= 0) tokens.push_back(event.token);
    if (event.finish == Finish::kNone) return;
    if (event.finish == Finish::kError) std::fprintf(stderr, "offline_bench: %s\n", event.error.c_str());
    done = true;
    done.notify_all();
  });
  done.wait(false);
  return tokens;
}

// Weights that a token of one sequence reads, of a qwen3_moe with everything but the router in nvfp4; 0 for others.
double bytes_per_token(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const nlohmann::json c = nlohmann::json::parse(file, nullptr, false);
  if (!c.is_object() || c.value("model_type", "") != "qwen3_moe" || !c.contains("quantization_config")) return 0;
  const auto n = [&](const char* key) { return c.at(key).get<double>(); };
  const double hidden = n("hidden_size"), dim = n("head_dim");
  const double attention = hidden * dim * 2 * (n("num_attention_heads") + n("num_key_value_heads"));
  const double experts = n("num_experts_per_tok") * 3 * hidden * n("moe_intermediate_size");
  const double router = n("num_experts") * hidden * 2;
  return n("num_hidden_layers") * ((attention + experts) * 0.5625 + router) + n("vocab_size") * hidden * 0.5625;
}

int experts_of(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const nlohmann::json c = nlohmann::json::parse(file, nullptr, false);
  if (!c.is_object()) return 0;
  const nlohmann::json& text = c.contains("text_config") ? c.at("text_config") : c;
  return text.value("num_experts", 0);
}

// Different experts per layer and step of decode, as a part of E (1 - (1 - K/E)^rows).
class ExpertCount {
 public:
  ExpertCount(int experts, int rows) : experts_(experts), rows_(rows) {}
  void add(int top_k, std::span<const int32_t> chosen) {
    if (std::ssize(chosen) != int64_t{rows_} * top_k) return;  // a step of prefill, or of the last few
    const std::set<int32_t> different(chosen.begin(), chosen.end());
    const double alone = experts_ * (1 - std::pow(1 - static_cast<double>(top_k) / experts_, rows_));
    parts_.push_back(static_cast<double>(different.size()) / alone);
  }
  double mean() const {
    return parts_.empty() ? 0 : std::accumulate(parts_.begin(), parts_.end(), 0.0) / static_cast<double>(parts_.size());
  }

 private:
  int experts_, rows_;
  std::vector<double> parts_;
};

int run_moe_product(const Options& o) {
  nlohmann::json times = nlohmann::json::array();
  for (const bench::MoeProductTime& t :
       bench::time_moe_products(bench::moe_shape(o.engine.model_path), o.moe_product, o.engine.device))
    times.push_back({{"tactic", t.tactic},
                     {"rows_per_expert", t.rows_per_expert},
                     {"rows", t.rows},
                     {"us", t.us},
                     {"gate_up_us", t.gate_up_us},
                     {"down_us", t.down_us},
                     {"short_us", t.short_us},
                     {"tflops", t.tflops}});
  std::printf("%s\n", times.dump(1).c_str());
  if (!o.json.empty()) std::ofstream(o.json) << times.dump(1) << "\n";
  return 0;
}

int run_bench(int argc, char** argv) {
  Options o = parse(argc, argv);
  if (!o.moe_product.empty()) return run_moe_product(o);
  int64_t load_peak = 0;
  o.engine.on_progress = [&](const std::string& phase, uint64_t, uint64_t) {
    if (phase == "load") load_peak = std::max(load_peak, status_bytes("RssAnon"));
  };
  const auto counting = std::make_shared<std::atomic<bool>>(false);
  ExpertCount* count = nullptr;
  Probe looking;
  looking.route_steps = counting;
  looking.on_routes = [&](int, int top_k, std::span<const int32_t> chosen) { count->add(top_k, chosen); };
  const bool on_gpu = find_device(o.engine.device).kind == DeviceKind::kCuda;
  const int64_t free_before = on_gpu ? gpu::free_memory() : 0;
  const auto engine = start_probed(o.engine, looking);
  const int64_t most_resident = status_bytes("VmHWM");
  const int vocab = engine->info().vocab_size;
  const auto prompts_of = [&](int rows, int i) {
    std::vector<std::vector<int32_t>> prompts;
    for (int r = 0; r < rows; ++r) prompts.push_back(random_ids(8, vocab, static_cast<unsigned>(1000 * i + r)));
    return prompts;
  };
  const auto decode = [&](int rows) {
    return median_of(3, [&](int i) {
      const EngineTimes t = time_together(*engine, prompts_of(rows, i), o.decode_new);
      return static_cast<double>(t.tokens_in_rest) / t.rest_s;
    });
  };
  const double prefill = median_of(3, [&](int i) {
    return o.prompt / time_together(*engine, {random_ids(o.prompt, vocab, 77u + static_cast<unsigned>(i))}, 1).first_s;
  });
  const EngineInfo& info = engine->info();
  nlohmann::json by_rows = nlohmann::json::object(), experts_by_rows = nlohmann::json::object();
  // What one thread team can read at this moment, between the measurements: other guests share the memory unseen.
  std::unique_ptr<bench::Probe> probe;
  if (!info.device.isas.empty()) probe = std::make_unique<bench::Probe>(info.threads);
  const auto read = [&] {
    if (probe != nullptr) probe->read(48);
  };
  for (const int rows : o.rows) {
    read();
    by_rows[std::to_string(rows)] = decode(rows);
    ExpertCount experts(experts_of(o.engine.model_path), rows);
    count = &experts;
    *counting = o.engine.tp_size == 1;
    time_together(*engine, prompts_of(rows, 0), o.decode_new);
    *counting = false;
    experts_by_rows[std::to_string(rows)] = experts.mean();
  }
  read();
  nlohmann::json result = {{"model", info.model_name},           {"threads", info.threads},
                           {"weight_bytes", info.weight_bytes},  {"prove_seconds", info.prove_seconds},
                           {"load_seconds", info.load_seconds},  {"load_peak_anonymous_bytes", load_peak},
                           {"decode_tokens_s_by_rows", by_rows}, {"experts_of_independent_rows", experts_by_rows},
                           {"prefill_tokens", o.prompt},         {"prefill_tokens_s", prefill},
                           {"device", info.device.model},        {"plan", info.plan}};
  result["load_peak_resident_bytes"] = most_resident;
  result["planned_bytes"] = info.planned_bytes;
  // Nothing is given back while it serves. The driver's own memory counts; so does what other programs take meanwhile.
  if (on_gpu) result["device_bytes_taken"] = free_before - gpu::free_memory();
  result["greedy_tokens"] = greedy_tokens(*engine, random_ids(40, vocab, 5), 12);
  if (probe != nullptr) {
    result["probe_read_gbs"] = probe->median_gbs();
    result["probe_read_best_gbs"] = probe->read_gbs();
    if (const double bytes = bytes_per_token(o.engine.model_path); bytes > 0 && by_rows.contains("1"))
      result["decode_1_row_fraction_of_probe"] = by_rows["1"].get<double>() * bytes / 1e9 / probe->median_gbs();
  }
  std::printf("%s\n", result.dump(1).c_str());
  if (!o.json.empty()) std::ofstream(o.json) << result.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace mettle

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "prove" && std::string(argv[2]) == "--child") return mettle::prove_child();
  try {
    return mettle::run_bench(argc, argv);
  } catch (const mettle::Error& e) {
    std::fprintf(stderr, "offline_bench: %s\n", e.what());
    return 1;
  }
}

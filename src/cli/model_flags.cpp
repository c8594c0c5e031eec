#include "cli/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/terminal.h"
#include "checkpoint/model_folder.h"
#include "ops/foreign_names.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

struct ForeignFlag {
  const char* name;
  const char* reason;
};

// What people bring from SGLang, vLLM and llama.cpp. Ignoring such a flag would serve something else than was asked
// for.
constexpr ForeignFlag kForeign[] = {
    {"--trust-remote-code", "mettle runs no code of a checkpoint; leave it out"},
    {"--quantization", "the format of each weight is read from the checkpoint; leave it out"},
    {"--dtype", "use --activation-dtype bf16 or fp32"},
    {"--mem-fraction-static", "the cache takes most of what is free; see --max-total-tokens"},
    {"--gpu-memory-utilization", "the cache takes most of what is free; see --max-total-tokens"},
    {"--disable-cuda-graph", "decode steps are captured when a GPU serves; leave it out"},
    {"--enforce-eager", "decode steps are captured when a GPU serves; leave it out"},
    {"--cuda-graph-max-bs", "every batch up to --max-running-requests is captured; leave it out"},
    {"--pipeline-parallel-size", "only tensor parallelism exists: --tp-size"},
    {"--pp-size", "only tensor parallelism exists: --tp-size"},
    {"--dp-size", "start one server per replica"},
    {"--data-parallel-size", "start one server per replica"},
    {"--ep-size", "experts are cut by --tp-size"},
    {"--enable-expert-parallel", "experts are cut by --tp-size"},
    {"--speculative-algorithm", "speculation is not built yet"},
    {"--speculative-config", "speculation is not built yet"},
    {"--reasoning-parser", "reasoning is recognised from the chat template; leave it out"},
    {"--tool-call-parser", "tool calls are recognised from the reply; leave it out"},
    {"--enable-auto-tool-choice", "tool calls are recognised whenever a request has tools; leave it out"},
    {"--chat-template", "the template is the checkpoint's own"},
    {"--tokenizer", "the tokenizer is the checkpoint's own"},
    {"--tokenizer-path", "the tokenizer is the checkpoint's own"},
    {"--disable-radix-cache", "there is no prefix cache to switch off"},
    {"--enable-prefix-caching", "there is no prefix cache"},
    {"--enable-metrics", "/metrics is always there; leave it out"},
    {"--enable-chunked-prefill", "prefill is always chunked; leave it out"},
    {"--disable-log-requests", "requests are not logged; leave it out"},
    {"--schedule-policy", "requests are served in the order they came"},
    {"--swap-space", "sequences are never swapped out"},
    {"--n-gpu-layers", "all layers are on one device: --device"},
    {"-ngl", "all layers are on one device: --device"},
};

std::string flag_of(const std::string& argument) { return argument.substr(0, argument.find('=')); }

std::string valid_flags(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, " "));
}

// The parser's ranges let it pass, since it is neither below nor above.
bool is_nan(const std::string& value) {
  char* end = nullptr;
  return std::isnan(std::strtod(value.c_str(), &end)) && *end == '\0';
}

int usage_error(const CLI::App& app, const std::string& message) {
  say(fmt::format("{}: {}\n", app.get_name(), message));
  return 2;
}

std::string wrong_backend(std::string_view op, const std::string& value) {
  const std::vector<std::string> ours = backend_names(op);
  if (value == "auto" || std::find(ours.begin(), ours.end(), value) != ours.end() ||
      find_foreign_name(op, value) != nullptr)
    return "";
  std::vector<std::string_view> foreign;
  for (const ForeignName& name : foreign_names())
    if (name.op == op) foreign.push_back(name.word);
  return fmt::format("must be auto, one of {}, or a word of another engine ({}); got \"{}\"", fmt::join(ours, ", "),
                     fmt::join(foreign, ", "), value);
}

void add_backend(CLI::App& app, const BackendFlag& flag, std::string& value) {
  app.add_option(std::string(flag.name), value,
                 fmt::format("backend of {}: auto picks the fastest proved one; a name, ours ({}) or one known from "
                             "another engine, never falls back",
                             flag.what, fmt::join(backend_names(flag.op), " ")))
      ->check(CLI::Validator([op = flag.op](const std::string& given) { return wrong_backend(op, given); }, ""))
      ->capture_default_str();
}

// Our name for what was given; empty: any. A word of another engine is translated for the device, or refused.
std::string backend_of(const BackendFlag& flag, const std::string& given, const std::string& device) {
  if (given == "auto") return "";
  const Device here = find_device(device);
  const std::vector<std::string> ours = backend_names(flag.op, here.kind);
  if (std::find(ours.begin(), ours.end(), given) != ours.end()) return given;
  const ForeignName* name = find_foreign_name(flag.op, given);
  if (name == nullptr)
    fail(Code::kUnsupported, fmt::format("{} {}: {}: it is no backend for {}, which has {}", flag.name, given,
                                         name_of(VerdictCode::kWrongSm), here.name, fmt::join(ours, ", ")));
  const Naming naming = translate(*name, here);
  const Verdict& v = naming.verdict;
  if (!v.ok())
    fail(Code::kUnsupported, fmt::format("{} {}: {}: {}; have {}, need {}; {}", flag.name, given, name_of(v.code),
                                         v.sentence, v.have, v.need, v.remedy));
  say(fmt::format("{} {}\n", flag.name, naming.line));
  return naming.backend;
}

// The first prompt of the proof of whole steps: where it does not fit nothing is proved, and nothing may serve.
constexpr int kLeastContext = 3;

constexpr BackendFlag kBackendFlags[] = {
    {"moe", "--moe-runner-backend", "the experts"},
    {"linear", "--fp4-gemm-backend", "single matrix products"},
    {"attention", "--attention-backend", "attention"},
    {"gdn", "--linear-attn-backend", "gated delta-rule layers"},
};

}  // namespace

std::span<const BackendFlag> backend_flags() { return kBackendFlags; }

CLI::Validator not_empty() {
  return {[](const std::string& value) { return value.empty() ? std::string("must not be empty") : std::string(); },
          ""};
}

CLI::Validator whole_number() {
  return {[](const std::string& value) {
            uint64_t number = 0;
            const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), number);
            const bool good = ec == std::errc() && end == value.data() + value.size();
            return good ? std::string() : fmt::format("must be a whole number in 0..{}, got {}", UINT64_MAX, value);
          },
          ""};
}

ModelOptions FormatFlags::options() const {
  return {.dense = dense_of(*this), .cache = cache_of(*this, Activation::kBf16)};
}

void add_format_flags(CLI::App& app, FormatFlags& f) {
  app.add_option("--dense-dtype", f.dense,
                 "auto: dense weights as the checkpoint has them; fp8: BF16 ones (attention, gdn projections, shared "
                 "experts, output head) become FP8 with a scale for each row at load; changes numbers")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", f.kv_cache,
                 "auto: that of the activations; bf16: the same, said; fp8_e4m3 (or fp8): half the bytes, with the "
                 "checkpoint's scales where it has them; changes numbers")
      ->check(CLI::IsMember({"auto", "bf16", "fp8_e4m3", "fp8"}))
      ->capture_default_str();
}

DenseDtype dense_of(const FormatFlags& f) { return f.dense == "fp8" ? DenseDtype::kFp8 : DenseDtype::kAuto; }

CacheFormat cache_of(const FormatFlags& f, Activation activation) {
  if (f.kv_cache == "bf16" && activation != Activation::kBf16)
    fail(Code::kInvalidRequest,
         fmt::format("--kv-cache-dtype: must be auto or fp8_e4m3 with {} activations, got bf16", name_of(activation)));
  return f.kv_cache.starts_with("fp8") ? CacheFormat::kE4M3 : CacheFormat::kActivation;
}

void add_model_flags(CLI::App& app, ModelFlags& o) {
  EngineOptions& e = o.engine;
  app.add_option("--device", e.device, "cpu, cuda, cuda:N, or auto: a GPU when there is one")->capture_default_str();
  app.add_option("--tp-size,--tensor-parallel-size,--tp", e.tp_size, "ranks the model is cut for")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--threads", e.threads, "threads in all, at most one per usable core; 0: all of them")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--context-length,--max-model-len,--ctx-size", e.context_length,
                 "tokens of prompt and answer; 0: the model's")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-running-requests,--max-num-seqs", e.max_running, "sequences in one step")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--chunked-prefill-size,--max-num-batched-tokens", e.step_tokens,
                 "rows of one step, decoding first; 0: 512, on a GPU with room 2048")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app.add_option("--max-total-tokens", o.max_total_tokens,
                 "tokens the cache holds; 0: what 1 GiB holds, on a GPU most of what is free")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--activation-dtype", o.activation, "activations between the steps of a layer")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  add_format_flags(app, o.formats);
  app.add_option("--load-format", o.load_format, "auto: the checkpoint's weights; dummy: random ones of its shapes")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app.add_flag("--deterministic", e.deterministic, "the same bits whatever else is in the batch");
  app.add_flag("--reprove", e.reprove, "prove again, whatever was proved before");
  add_backend(app, kBackendFlags[0], o.moe);
  add_backend(app, kBackendFlags[1], o.linear);
  add_backend(app, kBackendFlags[2], o.attention);
  add_backend(app, kBackendFlags[3], o.gdn);
}

int parse_arguments(CLI::App& app, int argc, char** argv) {
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return usage_error(app, e.what());
  }
  for (const CLI::Option* option : app.get_options())
    if (option->get_type_name().starts_with("FLOAT"))
      for (const std::string& value : option->results())
        if (is_nan(value))
          return usage_error(app, fmt::format("{}: must be a number, got {}", option->get_name(), value));
  bool options = true;  // until "--"
  for (const std::string& extra : app.remaining()) {
    if (options && extra == "--") {
      options = false;
      continue;
    }
    const std::string flag = options ? flag_of(extra) : "";
    for (const ForeignFlag& f : kForeign)
      if (flag == f.name) return usage_error(app, fmt::format("{}: {}", flag, f.reason));
    if (flag.starts_with("-") && flag.size() > 1)
      return usage_error(app, fmt::format("{}: no such option; there are {}", flag, valid_flags(app)));
    return usage_error(app, fmt::format("one argument too many: \"{}\"", extra));
  }
  return -1;
}

void resolve(ModelFlags& o) {
  EngineOptions& e = o.engine;
  if (e.context_length > 0 && e.context_length < kLeastContext)
    fail(Code::kInvalidRequest,
         fmt::format("--context-length: must be 0 or at least {} tokens, got {}", kLeastContext, e.context_length));
  e.model_path = find_model(o.model);
  e.dummy_weights = o.load_format == "dummy";
  e.activation = o.activation == "fp32" ? Activation::kF32 : Activation::kBf16;
  e.dense = dense_of(o.formats);
  e.kv_cache = cache_of(o.formats, e.activation);
  e.cache_tokens = o.max_total_tokens;
  e.moe_backend = backend_of(kBackendFlags[0], o.moe, e.device);
  e.linear_backend = backend_of(kBackendFlags[1], o.linear, e.device);
  e.attention_backend = backend_of(kBackendFlags[2], o.attention, e.device);
  e.gdn_backend = backend_of(kBackendFlags[3], o.gdn, e.device);
}

bool is_embedded(const ModelFlags& o) {
  if (o.model.empty()) return true;
  try {
    std::error_code ec;
    return std::filesystem::equivalent(o.engine.model_path, find_model(""), ec);
  } catch (const Error&) {  // installed without its model
    return false;
  }
}

std::function<void(const std::string&, uint64_t, uint64_t)> progress_on_stderr() {
  struct State {
    std::string phase;
    std::unique_ptr<Progress> bar;
  };
  return [state = std::make_shared<State>()](const std::string& phase, uint64_t done, uint64_t total) {
    if (phase != state->phase) {
      state->bar.reset();
      state->bar = std::make_unique<Progress>(phase, total);
      state->phase = phase;
    }
    state->bar->set(done);
    if (done >= total) {
      state->bar.reset();
      state->phase.clear();
    }
  };
}

}  // namespace mettle

// From options to a running engine: plan, prove, choose, load.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/model_folder.h"
#include "engine/choices.h"
#include "engine/layer_beside.h"
#include "engine/layer_proof.h"
#include "engine/loop.h"
#include "engine/plan.h"
#include "engine/step_proof.h"
#include "models/registry.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kHostCacheBytes = int64_t{1} << 30;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check_option(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail(Code::kInvalidRequest, fmt::format("{}: must be in {}..{}, got {}", name, least, most, value));
}

void check_options(const EngineOptions& o) {
  check_option("threads", o.threads, 0, 1024);
  check_option("tp_size", o.tp_size, 1, 64);
  check_option("context_length", o.context_length, 0, 1 << 24);
  check_option("max_running", o.max_running, 1, 4096);
  // A deterministic step always has room for one whole chunk beside the decode rows.
  const int least = o.deterministic && o.step_tokens != 0 ? o.max_running + kChunkGrid : 0;
  check_option("step_tokens", o.step_tokens, least, 1 << 16);
  check_option("cache_tokens", o.cache_tokens, 0, int64_t{1} << 40);
  check_option("cache_bytes", o.cache_bytes, 0, int64_t{1} << 50);
  check_option("max_waiting", o.max_waiting, 1, 1 << 20);
}

struct Ranks {
  std::vector<std::unique_ptr<Model>> models;
  std::vector<AnyProblem> problems;  // of all ranks, each once
  WeightBytes weights;
};

Ranks make_ranks(const EngineOptions& options, DeviceKind device, const nlohmann::json& config, WeightSource& source) {
  Ranks ranks;
  for (int rank = 0; rank < options.tp_size; ++rank) {
    ranks.models.push_back(make_model(config, source,
                                      {.activation = options.activation,
                                       .device = device,
                                       .rank = rank,
                                       .ranks = options.tp_size,
                                       .block_size = kBlockSize,
                                       .dense = options.dense,
                                       .cache = options.kv_cache}));
    const WeightBytes bytes = ranks.models.back()->weight_bytes();
    for (size_t f = 0; f < bytes.by_format.size(); ++f) ranks.weights.by_format[f] += bytes.by_format[f];
    for (const AnyProblem& problem : ranks.models.back()->problems())
      if (std::find(ranks.problems.begin(), ranks.problems.end(), problem) == ranks.problems.end())
        ranks.problems.push_back(problem);
  }
  return ranks;
}

ProveOptions prove_options_of(const EngineOptions& options, const Device& device, int threads_per_rank) {
  return {.device = device,
          .threads = threads_per_rank,
          .child_argv = options.child_argv,
          .cache_folder = options.cache_folder,
          .reprove = options.reprove};
}

ProofReport prove_all(const EngineOptions& options, ProveOptions prove_options, std::span<const AnyProblem> problems) {
  if (options.on_progress)
    prove_options.on_progress = [&](size_t done, size_t total, const ProofEntry&) {
      options.on_progress("prove", done, total);
    };
  ProofReport report = prove(problems, prove_options);
  warn_of_failures(report);
  warn_of_times(report);
  return report;
}

void load(const EngineOptions& options, Ranks& ranks, std::span<const std::unique_ptr<Place>> places,
          WeightSource& source) {
  const int64_t total = ranks.weights.total();
  int64_t before = 0;
  for (size_t rank = 0; rank < ranks.models.size(); ++rank) {
    const auto& model = ranks.models[rank];
    model->load(source, *places[rank], [&](int64_t loaded) {
      if (options.on_progress)
        options.on_progress("load", static_cast<uint64_t>(before + loaded), static_cast<uint64_t>(total));
    });
    before += model->weight_bytes().total();
  }
  source.finish();
}

}  // namespace

std::unique_ptr<Engine> Engine::start(const EngineOptions& options) { return start_probed(options, {}); }

std::unique_ptr<Engine> start_probed(const EngineOptions& options, Probe probe) {
  check_options(options);
  const ModelFolder folder = open_model_folder(options.model_path);
  const std::unique_ptr<WeightSource> source = options.dummy_weights ? dummy_weights(folder.config, options.dummy_seed)
                                                                     : open_weights(folder.path, folder.config);
  const Device device = find_device(options.device);
  const bool on_gpu = device.kind == DeviceKind::kCuda;
  check_device_options(options, device.kind);
  Ranks ranks = make_ranks(options, device.kind, folder.config, *source);
  const ModelInfo model = ranks.models.front()->info();
  // More threads than cores only wait for each other: 1,024 of them on two cores never got to an answer.
  const int most = std::max(usable_cores(), options.tp_size);
  const int threads = options.threads > 0 ? std::min(options.threads, most) : usable_cores();
  if (threads < options.threads)
    log::warn("threads: {} asked for, {} used: so many cores are usable", options.threads, threads);
  const int threads_per_rank = std::max(threads / options.tp_size, 1);

  const int64_t available = on_gpu ? gpu::free_memory() : available_memory();
  check_memory({.weights = ranks.weights, .available = available});  // before minutes go into proofs

  EngineParts parts;
  const int usable = options.usable_vocab > 0 ? std::min(options.usable_vocab, model.vocab) : model.vocab;
  parts.sample_problem = {.vocab = model.vocab, .usable = usable};
  ranks.problems.emplace_back(parts.sample_problem);

  EngineInfo& info = parts.info;
  const auto prove_start = Clock::now();
  parts.prove_options = prove_options_of(options, device, threads_per_rank);
  std::shared_ptr<ChoiceSource> source_of_choices = probe.choices;
  if (source_of_choices == nullptr) {
    info.proofs = prove_all(options, parts.prove_options, ranks.problems);
    source_of_choices = proved_choices(info.proofs, options);
  }
  parts.guard = options.guard;
  parts.on_stopped = options.on_stopped;
  const Repeats repeats = !options.deterministic ? Repeats::kNotAsked
                          : on_gpu               ? Repeats::kOneShape
                                                 : Repeats::kOneChoice;
  parts.choices = std::make_unique<EngineChoices>(std::move(source_of_choices), repeats);
  for (const auto& rank : ranks.models) rank->choose(*parts.choices);
  parts.sample_choices = parts.choices->choose(parts.sample_problem);
  parts.choices->close();
  parts.problems = ranks.problems;
  info.prove_seconds = seconds_since(prove_start);

  MemoryPlan plan{.weights = ranks.weights, .available = available};
  StepLimits limits{.rows = 1, .logit_rows = options.max_running, .team_members = threads_per_rank};
  const auto scratch = [&] {
    int64_t bytes = int64_t{limits.logit_rows} * model.vocab * static_cast<int64_t>(sizeof(float));
    for (const auto& rank : ranks.models) bytes += static_cast<int64_t>(rank->scratch_bytes(limits));
    bytes +=
        static_cast<int64_t>(parts.sample_choices.workspace(parts.sample_problem, limits.logit_rows, threads_per_rank));
    if (on_gpu) {
      const int context = options.context_length > 0 ? options.context_length : model.context;
      bytes += GpuStep::driver_bytes({.rows = limits.rows,
                                      .sequences = limits.logit_rows,
                                      .context = context,
                                      .deterministic = options.deterministic},
                                     model.layers);
      bytes += layers_beside_bytes(*ranks.models.front(),
                                   {.rows = limits.rows,
                                    .logit_rows = limits.logit_rows,
                                    .block_size = kBlockSize,
                                    .slots = limits.logit_rows,
                                    .context = context,
                                    .deterministic = options.deterministic},
                                   device.kind);
    }
    return bytes;
  };
  const CacheBytes cache_bytes = cache_bytes_of(ranks.models);
  if (asks_for_caches(options)) plan.caches = plan_caches(options, options.cache_bytes, model, cache_bytes);
  const int64_t room = room_of_steps(options, plan);
  limits.rows = step_rows(options, device.kind, room, [&](int rows) {
    limits.rows = rows;  // what scratch() counts
    return scratch();
  });
  if (!asks_for_caches(options))
    plan.caches = plan_caches(options, on_gpu ? std::max(room - scratch(), int64_t{1} << 20) : kHostCacheBytes, model,
                              cache_bytes);
  limits.logit_rows = plan.caches.max_running;
  plan.scratch_bytes = scratch();
  info.plan = fmt::format(
      "plan of {}: {}, {} layers, {} activations, {} ranks of {} threads, context {}, steps of {} rows\n"
      "{}{}backends\n{}",
      folder.name, model.architecture, model.layers, name_of(options.activation), options.tp_size, threads_per_rank,
      plan.caches.context, limits.rows, formats_text(options, model), plan.text(), parts.choices->text());
  log::info("{}", info.plan);
  check_memory(plan);
  if (options.kv_cache == CacheFormat::kE4M3 && model.scaled_layers < model.attention_layers)
    log::warn(
        "kv cache: {} of {} attention layers have no scales of k and v in the checkpoint and take 1: what lies "
        "beyond 448 saturates",
        model.attention_layers - model.scaled_layers, model.attention_layers);

  const auto load_start = Clock::now();
  std::vector<std::unique_ptr<Place>> places;
  for (int rank = 0; rank < options.tp_size; ++rank) places.push_back(on_gpu ? gpu::place() : host_place());
  load(options, ranks, places, *source);
  info.load_seconds = seconds_since(load_start);

  info.model_name = folder.name;
  info.architecture = model.architecture;
  info.vocab_size = model.vocab;
  info.context_length = plan.caches.context;
  info.layers = model.layers;
  for (const int32_t id : folder.eos_ids)
    if (id >= 0 && id < model.vocab) info.eos_ids.push_back(id);
  info.weight_bytes = ranks.weights.total();
  info.cache_bytes = plan.caches.kv_bytes + plan.caches.state_bytes;
  info.scratch_bytes = plan.scratch_bytes;
  info.kv_bytes = plan.caches.kv_bytes;
  info.state_bytes = plan.caches.state_bytes;
  info.planned_bytes = plan.total();
  info.available_bytes = plan.available;
  info.blocks = plan.caches.blocks;
  info.block_size = kBlockSize;
  info.state_slots = plan.caches.slots;
  info.activation = options.activation;
  info.tp_size = options.tp_size;
  info.dense = options.dense;
  info.requantised = model.requantised;
  info.kv_cache = options.kv_cache == CacheFormat::kE4M3 ? DType::kE4M3 : dtype_of(options.activation);
  info.attention_layers = model.attention_layers;
  info.scaled_layers = options.kv_cache == CacheFormat::kE4M3 ? model.scaled_layers : 0;
  info.device = device;
  info.threads = threads;
  info.dummy_weights = source->is_dummy();

  parts.scheduler = {.max_running = plan.caches.max_running,
                     .step_tokens = limits.rows,
                     .block_size = kBlockSize,
                     .needs_slots = plan.caches.slots > 0,
                     .deterministic = options.deterministic,
                     .whole_chunk = repeats == Repeats::kOneShape ? limits.rows : 0,
                     .blocks = plan.caches.blocks,
                     .slots = plan.caches.slots,
                     .max_waiting = options.max_waiting};
  parts.runner = std::make_unique<Runner>(std::move(ranks.models), std::move(places), threads_per_rank);
  const Runner::Sizes sizes{.rows = limits.rows,
                            .logit_rows = limits.logit_rows,
                            .blocks = plan.caches.blocks,
                            .block_size = kBlockSize,
                            .slots = plan.caches.slots,
                            .context = plan.caches.context,
                            .deterministic = options.deterministic};
  parts.runner->ready(sizes);
  if (on_gpu) {
    // What it holds now is the most it ever held: nothing is given back before the end.
    const auto taken = static_cast<int64_t>(parts.runner->place().bytes());
    log::info("engine: {} decode graphs on {}; {}", parts.runner->graphs(), device.model,
              taken_text(taken, plan.total(), available, gpu::free_memory()));
  }
  const StepProof steps = prove_steps(*parts.runner, sizes);
  if (!steps.verdict.ok()) fail(Code::kDevice, steps.text());
  log::info("{}", steps.text());
  const LayerProof layers = prove_layers(*parts.runner, sizes, *parts.choices);
  if (!layers.verdict.ok()) fail(Code::kDevice, layers.text());
  log::info("{}", layers.text());
  parts.probe = std::move(probe);
  return std::make_unique<EngineLoop>(std::move(parts));
}

}  // namespace mettle

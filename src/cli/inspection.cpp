#include "cli/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <variant>

#include "base/error.h"
#include "base/thread_team.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/module_tensors.h"
#include "cli/target.h"
#include "cli/weight_list.h"
#include "engine/plan.h"
#include "models/registry.h"
#include "ops/dispatch.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

constexpr int kStepRows = 512;  // of the engine, unless told otherwise or on a GPU with room for longer steps

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string kind_of(std::string_view name) {
  if (contains(name, "visual.") || contains(name, "vision_")) return "vision";
  if (name.starts_with("mtp.") || contains(name, ".mtp.")) return "mtp layer";
  if (name.ends_with("embed_tokens") || name.ends_with("embed_tokens.weight")) return "embedding";
  if (contains(name, "lm_head")) return "output head";
  if (contains(name, "shared_expert_gate") || contains(name, ".mlp.gate.") || name.ends_with(".mlp.gate"))
    return "routers and gates";
  if (contains(name, ".shared_expert")) return "shared experts";
  if (contains(name, ".experts.")) return "routed experts";
  if (name.ends_with("norm.weight") || name.ends_with("norm")) return "norms";
  if (contains(name, ".self_attn.")) return "attention";
  if (contains(name, ".linear_attn."))
    return contains(name, "in_proj_qkv") || contains(name, "in_proj_z") || contains(name, "out_proj")
               ? "gdn projections"
               : "gdn small";
  return contains(name, ".mlp.") ? "dense mlp" : "other";
}

// Order of the table.
int rank_of(const std::string& kind) {
  constexpr std::string_view kOrder[] = {"routed experts",
                                         "shared experts",
                                         "dense mlp",
                                         "attention",
                                         "gdn projections",
                                         "gdn small",
                                         "routers and gates",
                                         "norms",
                                         "embedding",
                                         "output head",
                                         "mtp layer",
                                         "vision",
                                         "other"};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), kind) - std::begin(kOrder));
}

// For each problem the variant that wants the most scratch: an upper bound for whatever proofs will choose.
// `reference` counts only where there is nothing else.
class GreediestChoices : public ChoiceSource {
 public:
  explicit GreediestChoices(const Device& device, int team_members) : device_(device), members_(team_members) {}
  Choices<EmbedOp> choose(const EmbedProblem& p) override { return most<EmbedOp>(p); }
  Choices<JoinOp> choose(const JoinProblem& p) override { return most<JoinOp>(p); }
  Choices<LinearOp> choose(const LinearProblem& p) override { return most<LinearOp>(p); }
  Choices<MoeOp> choose(const MoeProblem& p) override { return most<MoeOp>(p); }
  Choices<AttentionOp> choose(const AttentionProblem& p) override { return most<AttentionOp>(p); }
  Choices<GdnOp> choose(const GdnProblem& p) override { return most<GdnOp>(p); }
  Choices<SampleOp> choose(const SampleProblem& p) override { return most<SampleOp>(p); }

 private:
  template <class Op>
  Choices<Op> most(const typename Op::Problem& problem) const {
    Choice<Op> chosen, plain;
    size_t chosen_bytes = 0;
    for (const Backend<Op>* backend : backends_of<Op>()) {
      if (backend->kind != device_.kind || !backend->supports(problem, device_).ok()) continue;
      for (const Tactic& tactic : backend->tactics(problem, device_)) {
        if (backend->name == "reference") {
          plain = {backend, tactic};
          continue;
        }
        const size_t bytes =
            backend->workspace == nullptr ? 0 : backend->workspace(tactic, problem, kStepRows, members_);
        if (chosen.backend == nullptr || bytes > chosen_bytes) {
          chosen = {backend, tactic};
          chosen_bytes = bytes;
        }
      }
    }
    Choices<Op> choices;
    choices.by_bucket.fill(chosen.backend != nullptr ? chosen : plain);
    return choices;
  }

  const Device& device_;
  int members_;
};

using Ranks = std::vector<std::unique_ptr<Model>>;

Ranks make_ranks(const nlohmann::json& config, WeightSource& list, const Device& device, ModelOptions options,
                 int tp_size) {
  Ranks ranks;
  options.device = device.kind;
  options.ranks = tp_size;
  options.block_size = kBlockSize;
  for (options.rank = 0; options.rank < tp_size; ++options.rank) ranks.push_back(make_model(config, list, options));
  return ranks;
}

// The norms between the steps are asked for at load alone.
void list_norms(WeightList& list, const ModelInfo& info) {
  constexpr std::string_view kEmbedding = "embed_tokens";
  std::string prefix;
  for (const auto& [name, weight] : list.weights())
    if (name.ends_with(kEmbedding)) prefix = name.substr(0, name.size() - kEmbedding.size());
  for (int layer = 0; layer < info.layers; ++layer)
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      list.wants_vector(fmt::format("{}layers.{}.{}.weight", prefix, layer, norm), {info.hidden});
  list.wants_vector(prefix + "norm.weight", {info.hidden});
}

class Contents {
 public:
  void add(std::string_view name, std::string_view format, int64_t weights, int64_t bytes, bool used) {
    const std::string kind = kind_of(name);
    Content& c = by_key_[{rank_of(kind), std::string(format), used}];
    c.kind = kind;
    c.format = format;
    c.used = used;
    ++c.modules;
    c.weights += weights;
    c.bytes += bytes;
  }
  void add_list(const WeightList& list) {
    for (const auto& [name, w] : list.weights()) add(name, name_of(w.format), w.rows * w.cols, w.bytes, true);
  }
  // Every tensor of the files, whether anything here needs it or not.
  void add_files(const Safetensors& files, const WeightList& list, bool planned) {
    for (const StoredTensor& t : files.tensors()) {
      const std::string module(module_of_weight(t));
      const auto used = [&](const std::string& name) { return planned && list.weights().contains(name); };
      int64_t elements = 1;
      for (const int64_t size : t.shape) elements *= size;
      const auto bytes = static_cast<int64_t>(t.bytes);
      if (!module.empty()) {
        const std::optional<ModuleTensors> m = module_tensors(files, module);
        const bool readable = m && m->unsupported.empty();
        const std::string format = readable ? std::string(name_of(m->format))
                                   : m      ? m->unsupported
                                            : std::string(t.stored_as);
        add(module, format, readable ? m->rows() * m->cols() : elements, bytes, used(module) || used(t.name));
      } else if (const std::string owner(module_of_companion(t.name)); !owner.empty()) {
        companions_.emplace_back(owner, bytes);
      } else {
        add(t.name, t.readable ? mettle::name_of(t.dtype) : t.stored_as, elements, bytes, used(t.name));
      }
    }
    // Scales count to the matrix they belong to.
    for (const auto& [owner, bytes] : companions_) {
      const std::optional<ModuleTensors> m = module_tensors(files, owner);
      const bool used = planned && list.weights().contains(owner);
      const std::string format(m && m->unsupported.empty() ? std::string(name_of(m->format))
                               : m                         ? m->unsupported
                                                           : "-");
      Content& c = by_key_[{rank_of(kind_of(owner)), format, used}];
      if (c.kind.empty()) {
        c.kind = kind_of(owner);
        c.format = format;
        c.used = used;
      }
      c.bytes += bytes;
    }
  }
  std::vector<Content> take() {
    std::vector<Content> all;
    for (auto& [key, content] : by_key_) all.push_back(std::move(content));
    return all;
  }

 private:
  std::map<std::tuple<int, std::string, bool>, Content> by_key_;
  std::vector<std::pair<std::string, int64_t>> companions_;
};

// Contents whose BF16 weights --dense-dtype is about. Tied heads are made of the embedding.
bool is_dense(const std::string& kind, bool tied) {
  return kind == "attention" || kind == "gdn projections" || kind == "shared experts" || kind == "output head" ||
         (tied && kind == "embedding");
}

// What a step reads of the weights. Tied heads read the embedding, others a row of it for each token.
void count_reads(Inspection& i, int vocab, int sequences, DenseDtype dense) {
  const bool tied = std::none_of(i.contents.begin(), i.contents.end(),
                                 [](const Content& c) { return c.used && c.kind == "output head"; });
  for (Content& c : i.contents) {
    if (!c.used) continue;
    if (dense == DenseDtype::kFp8 && c.format == name_of(WeightFormat::kBf16) && is_dense(c.kind, tied))
      c.served = name_of(WeightFormat::kFp8);
    const auto all = static_cast<double>(c.served.empty() ? c.bytes : bytes_of(WeightFormat::kFp8, 1, c.weights));
    c.read_one = c.read_many = all;
    if (c.kind == "routed experts" && i.experts > 0) {
      c.read_one = all * distinct_experts(i.experts, i.top_k, 1) / i.experts;
      c.read_many = all * distinct_experts(i.experts, i.top_k, sequences) / i.experts;
    } else if (c.kind == "embedding" && !tied) {
      c.read_one = all / vocab;
      c.read_many = std::min(all, sequences * all / vocab);
    }
  }
}

void count_bounds(Inspection& i, const CacheBytes& caches, int context, int sequences) {
  double one = 0, many = 0;
  for (const Content& c : i.contents) {
    one += c.read_one;
    many += c.read_many;
  }
  std::set<int> contexts = {std::min(1024, context), context};
  for (const int length : contexts)
    for (const int n : std::set<int>{1, sequences}) {
      Bound b{.context = length, .sequences = n, .weights = n == 1 ? one : many};
      b.state = 2.0 * n * static_cast<double>(caches.per_slot);  // read and written back
      b.kv = static_cast<double>(n) * length * static_cast<double>(caches.per_token);
      if (i.bandwidth.bytes_per_second > 0) {
        // Ranks of a CPU share its memory.
        const int devices = i.device.kind == DeviceKind::kCuda ? i.tp_size : 1;
        b.tokens_per_second = n * i.bandwidth.bytes_per_second * devices / b.bytes();
      }
      i.bounds.push_back(b);
    }
}

Fit fit_of(const InspectionRequest& r, const Inspection& i, const Ranks& ranks, const Device& device) {
  Fit fit;
  const ModelInfo& info = ranks.front()->info();
  fit.context = r.context_length > 0 ? r.context_length : info.context;
  fit.sequences = r.concurrency;
  const bool gpu = device.kind == DeviceKind::kCuda;
  const int members = gpu ? 1 : std::max(usable_cores() / r.tp_size, 1);
  GreediestChoices choices(device, members);
  const StepLimits limits{.rows = kStepRows, .logit_rows = r.concurrency, .team_members = members};
  const int64_t logits = int64_t{r.concurrency} * info.vocab * static_cast<int64_t>(sizeof(float));
  for (const auto& rank : ranks) {
    rank->choose(choices);
    const int64_t weights = rank->weight_bytes().total();
    const auto scratch = static_cast<int64_t>(rank->scratch_bytes(limits));
    int64_t kv = 0, state = 0;
    for (const CacheEntry& entry : rank->caches())
      (entry.kind == CacheEntry::Kind::kPaged ? kv : state) += entry.bytes();
    if (gpu) {
      fit.weights = std::max(fit.weights, weights);
      fit.scratch = std::max(fit.scratch, scratch);
      fit.kv_per_token = std::max(fit.kv_per_token, kv);
      fit.state_per_sequence = std::max(fit.state_per_sequence, state);
    } else {
      fit.weights += weights;
      fit.scratch += scratch;
      fit.kv_per_token += kv;
      fit.state_per_sequence += state;
    }
  }
  fit.scratch += logits;
  if (!gpu) {
    fit.memory = available_memory();
    fit.memory_is = "available now";
  } else if (i.named) {
    fit.memory = device.memory;
    fit.memory_is = "as sold; the driver takes a part";
  } else {
    fit.memory = gpu::free_memory();
    fit.memory_is = "free now";
  }
  return fit;
}

void count_shuffle(Inspection& i) {
  int64_t experts = 0;
  for (const Content& c : i.contents)
    if (c.kind == "routed experts" && c.used) experts += c.bytes;
  if (experts == 0 || !i.fit || i.device.kind != DeviceKind::kCuda) return;
  const int64_t all = experts / i.tp_size, layer = all / std::max(i.layers, 1);
  const int64_t weights = i.fit->weights;
  const auto add = [&](std::string way, std::string formula, std::string source, int64_t more) {
    i.shuffle.push_back(
        {std::move(way), std::move(formula), std::move(source), weights + more, weights + more <= i.fit->memory});
  };
  add("in place, in chunks", "weights + 64 MiB", "vLLM since vllm-project/vllm#46276", int64_t{64} << 20);
  add("a layer's copies beside its originals", "weights + experts of a layer",
      "vLLM before vllm-project/vllm#46276, SGLang before sgl-project/sglang#26861", layer);
  add("copies of all layers, originals freed at the end", "weights + all experts",
      "results kept per expert: vllm-project/vllm#55407, sgl-project/sglang#38567", all);
}

}  // namespace

double distinct_experts(int experts, int top_k, int tokens) {
  if (experts <= 0) return 0;
  return experts * (1 - std::pow(1 - static_cast<double>(top_k) / experts, tokens));
}

int64_t Fit::most_sequences() const {
  const int64_t each = state_per_sequence + int64_t{context} * kv_per_token;
  return free_for_caches() <= 0 ? 0 : each == 0 ? INT32_MAX : free_for_caches() / each;
}

int64_t Fit::most_context() const {
  const int64_t rest = free_for_caches() - state();
  if (rest <= 0 || sequences == 0) return 0;
  return kv_per_token == 0 ? INT32_MAX : rest / sequences / kv_per_token;
}

Inspection inspect(const InspectionRequest& r) {
  Inspection i;
  i.tp_size = r.tp_size;
  i.device = device_of_flag(r.device, i.named);
  const ModelFolder folder = open_model_folder(find_model(r.model));
  i.model = folder.name;
  std::unique_ptr<Safetensors> files;
  if (has_weights(folder.path)) files = std::make_unique<Safetensors>(Safetensors::open(folder.path));
  i.formats = files != nullptr ? "the checkpoint" : "config.json";

  WeightList list(folder.config, files.get());
  Ranks ranks;
  try {
    i.architecture = find_model_entry(folder.config).name;
    if (files != nullptr) open_weights(folder.path, folder.config);  // what serving would refuse before it plans
    ranks = make_ranks(folder.config, list, i.device, r.formats, r.tp_size);
    list_norms(list, ranks.front()->info());
  } catch (const Error& e) {
    if (files == nullptr) throw;  // then there is nothing left to tell
    i.refusal = e.message;
    ranks.clear();
  }
  Contents contents;
  if (files != nullptr) {
    contents.add_files(*files, list, !ranks.empty());
    i.files_bytes = static_cast<int64_t>(files->bytes());
    i.anomalies = find_anomalies(*files);
  } else {
    contents.add_list(list);
  }
  i.contents = contents.take();
  if (ranks.empty()) return i;

  i.missing = list.missing();
  std::map<std::string, int64_t> aside;
  if (files != nullptr) {
    for (const StoredTensor* t : list.unused()) i.unused.push_back(t->name);
    for (const StoredTensor& t : files->tensors())
      if (const std::string why = list.why_ignored(t.name); !why.empty()) aside[why] += static_cast<int64_t>(t.bytes);
  }
  i.kept_aside.assign(aside.begin(), aside.end());
  const ModelInfo& info = ranks.front()->info();
  i.layers = info.layers;
  i.context = info.context;
  i.mtp_layers = info.mtp_layers;
  if (r.context_length > info.context)
    fail(Code::kInvalidRequest,
         fmt::format("--context-length: must be at most the model's {}, got {}", info.context, r.context_length));
  for (const AnyProblem& problem : ranks.front()->problems())
    if (const auto* moe = std::get_if<MoeProblem>(&problem)) {
      i.experts = moe->experts;
      i.top_k = moe->top_k;
    }
  i.bandwidth = memory_bandwidth(i.device);
  count_reads(i, info.vocab, r.concurrency, r.formats.dense);
  i.fit = fit_of(r, i, ranks, i.device);
  // One rank's caches hold copies of heads that ranks share; the model's own size is that of one rank alone.
  const Ranks whole = r.tp_size == 1 ? Ranks() : make_ranks(folder.config, list, i.device, r.formats, 1);
  count_bounds(i, cache_bytes_of(r.tp_size == 1 ? ranks : whole), i.fit->context, r.concurrency);
  count_shuffle(i);
  return i;
}

}  // namespace mettle

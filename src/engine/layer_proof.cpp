#include "engine/layer_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/layer_watch.h"
#include "models/block.h"
#include "ops/problem.h"

namespace mettle {
namespace {

constexpr int64_t kRowWork = 400'000'000;  // multiply-adds that judging all rows may cost
constexpr int kMostRows = 80;

struct Turn {
  int sequence = 0, rows = 0;
};
using Turns = std::vector<Turn>;

// Multiply-adds of the oracle for a row of one layer of each kind.
int64_t work_of(std::span<const AnyProblem> problems) {
  int64_t work = 0;
  for (const AnyProblem& any : problems) {
    if (const auto* m = std::get_if<MoeProblem>(&any))
      work +=
          int64_t{3} * m->hidden * (int64_t{m->top_k} * m->width + m->shared_width) + int64_t{m->hidden} * m->experts;
    if (const auto* a = std::get_if<AttentionProblem>(&any))
      work += int64_t{a->hidden} * (a->qkv_rows() + int64_t{a->heads} * a->head_dim);
    if (const auto* g = std::get_if<GdnProblem>(&any))
      work += int64_t{g->hidden} * (g->channels() + int64_t{2} * g->value_heads * g->dv) +
              int64_t{8} * g->value_heads * g->dk * g->dv;
  }
  return std::max<int64_t>(work, 1);
}

// A first step tells which layers are the last of their kind, and what memory is full of; then a chunk beside a prompt,
// decode rows beside a prompt, and decode rows alone.
std::vector<Turns> script(int rows) {
  const int prompt = std::clamp(rows / 2, 2, 40), chunk = std::clamp(rows / 5, 2, 17);
  return {{{0, 3}}, {{0, chunk}, {1, 5}}, {{0, 1}, {1, 1}, {2, prompt}}, {{0, 1}, {1, 1}, {2, 1}}, {{1, 1}}};
}

class Restored {  // the served choices stand again, whatever happens
 public:
  Restored(Model& model, ChoiceSource& choices, LayerWatch& watch) : model_(model), choices_(choices) {
    LayerWatch::current = &watch;
    model.choose(*LayerWatch::watching_choices());
  }
  ~Restored() {
    LayerWatch::current = nullptr;
    model_.choose(choices_);
  }

 private:
  Model& model_;
  ChoiceSource& choices_;
};

}  // namespace

std::string LayerProof::text() const {
  if (!verdict.ok())
    return fmt::format("layer proof: {}: {}: have {}, need {}", name_of(verdict.code), verdict.sentence, verdict.have,
                       verdict.need);
  return fmt::format("layer proof: {} steps, {} ops in their places, {} elements, the worst {:.2g} of 10 sigmas", steps,
                     ops, comparisons, worst);
}

LayerProof prove_layers(Runner& runner, const Runner::Sizes& sizes, ChoiceSource& choices) {
  LayerProof proof;
  if (runner.place().kind() == DeviceKind::kCuda) return proof;
  Model& model = *runner.ranks().front();
  const int vocab = model.info().vocab;
  int64_t most = std::min<int64_t>({3, sizes.logit_rows, sizes.blocks});
  if (sizes.slots > 0) most = std::min(most, sizes.slots);
  const int sequences = static_cast<int>(most);
  const int64_t tokens = std::min<int64_t>(sizes.context, sizes.blocks / sequences * sizes.block_size);
  const std::vector<AnyProblem> problems = model.problems();
  const int rows = static_cast<int>(std::clamp<int64_t>(kRowWork / work_of(problems), 4, kMostRows));

  ProofEntry entry;
  LayerWatch watch(choices, entry);
  const int blocks_each =
      static_cast<int>((std::min<int64_t>(tokens, kMostRows) + sizes.block_size - 1) / sizes.block_size);
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(sequences));
  for (int s = 0; s < sequences; ++s)  // neighbours in a table are not neighbours in memory
    for (int b = 0; b < blocks_each; ++b) tables[static_cast<size_t>(s)].push_back(b * sequences + s);
  std::vector<int> lengths(tables.size());
  const int64_t slots = sizes.slots > 0 ? sequences : 0, blocks = int64_t{sequences} * blocks_each;
  runner.fill_caches(0xff, blocks, slots);  // NaN: a row that no step wrote may not be read
  {
    const Restored restored(model, choices, watch);
    for (const Turns& turns : script(rows)) {
      std::vector<int32_t> ids, logit_rows;
      std::vector<BatchSequence> batch;
      for (const Turn& t : turns) {
        if (t.sequence >= sequences) continue;
        int& length = lengths[static_cast<size_t>(t.sequence)];
        const int room = static_cast<int>(std::min<int64_t>(
            {tokens, blocks_each * sizes.block_size, int64_t{length} + sizes.rows - std::ssize(ids)}));
        const int count = std::min(t.rows, room - length);
        if (count < 1) continue;
        batch.push_back({.first_row = static_cast<int>(ids.size()),
                         .q_len = count,
                         .ctx_len = length,
                         .block_table = tables[static_cast<size_t>(t.sequence)].data(),
                         .state_in = slots > 0 && length > 0 ? t.sequence : -1,
                         .state_out = slots > 0 ? t.sequence : -1});
        for (int r = 0; r < count; ++r)
          ids.push_back(static_cast<int32_t>((int64_t{length + r} * 53 + t.sequence * 29 + 11) % vocab));
        length += count;
        logit_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
      }
      if (ids.empty()) continue;
      watch.begin_step(fmt::format("step {} of {} rows", proof.steps, ids.size()), logit_rows, proof.steps > 0);
      runner.run_eagerly(
          {.batch = {.rows = static_cast<int>(ids.size()), .block_size = sizes.block_size, .sequences = batch},
           .ids = ids.data(),
           .logit_rows = logit_rows,
           .logits = view_of(runner.logits().data, DType::kF32, {std::ssize(logit_rows), vocab})});
      runner.wait();
      if (proof.steps++ == 0) std::fill(lengths.begin(), lengths.end(), 0);  // they begin anew
      if (!watch.verdict().ok()) break;
    }
    watch.look_at_caches();
  }
  runner.fill_caches(0, blocks, slots);
  proof.verdict = watch.verdict();
  proof.ops = watch.judged();
  proof.comparisons = entry.comparisons;
  proof.worst = entry.max_error;
  if (proof.verdict.ok() && proof.comparisons == 0)
    proof.verdict = refuse(VerdictCode::kUnproved, "0 comparisons", "at least 1", "no step fits this set-up");
  return proof;
}

}  // namespace mettle

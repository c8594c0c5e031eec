#include "engine/layer_steps.h"

#include <algorithm>

#include "models/block.h"

namespace mettle {

int64_t work_of_a_row(std::span<const AnyProblem> problems) {
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

LayerSteps::LayerSteps(Runner& runner, const Runner::Sizes& sizes, int tokens)
    : runner_(runner), sizes_(sizes), vocab_(runner.ranks().front()->info().vocab) {
  int64_t most = std::min<int64_t>({kMostSequences, sizes.logit_rows, sizes.blocks});
  if (sizes.slots > 0) most = std::min(most, sizes.slots);
  sequences_ = static_cast<int>(most);
  tokens_ = std::min<int64_t>(sizes.context, sizes.blocks / sequences_ * sizes.block_size);
  blocks_each_ = static_cast<int>((std::min<int64_t>(tokens_, tokens) + sizes.block_size - 1) / sizes.block_size);
  tables_.resize(static_cast<size_t>(sequences_));
  for (int s = 0; s < sequences_; ++s)  // neighbours in a table are not neighbours in memory
    for (int b = 0; b < blocks_each_; ++b) tables_[static_cast<size_t>(s)].push_back(b * sequences_ + s);
  lengths_.resize(tables_.size());
}

void LayerSteps::begin_anew() { std::fill(lengths_.begin(), lengths_.end(), 0); }

bool LayerSteps::run(const Turns& turns,
                     const std::function<void(int rows, std::span<const int32_t> logit_rows)>& before) {
  std::vector<int32_t> ids, logit_rows;
  std::vector<BatchSequence> batch;
  for (const Turn& t : turns) {
    if (t.sequence >= sequences_) continue;
    int& length = lengths_[static_cast<size_t>(t.sequence)];
    const int room = static_cast<int>(std::min<int64_t>(
        {tokens_, int64_t{blocks_each_} * sizes_.block_size, int64_t{length} + sizes_.rows - std::ssize(ids)}));
    const int count = std::min(t.rows, room - length);
    if (count < 1) continue;
    batch.push_back({.first_row = static_cast<int>(ids.size()),
                     .q_len = count,
                     .ctx_len = length,
                     .block_table = tables_[static_cast<size_t>(t.sequence)].data(),
                     .state_in = slots() > 0 && length > 0 ? t.sequence : -1,
                     .state_out = slots() > 0 ? t.sequence : -1});
    for (int r = 0; r < count; ++r)
      ids.push_back(static_cast<int32_t>((int64_t{length + r} * 53 + t.sequence * 29 + 11) % vocab_));
    length += count;
    logit_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
  }
  if (ids.empty()) return false;
  before(static_cast<int>(ids.size()), logit_rows);
  runner_.run_eagerly(
      {.batch = {.rows = static_cast<int>(ids.size()), .block_size = sizes_.block_size, .sequences = batch},
       .ids = ids.data(),
       .logit_rows = logit_rows,
       .logits = view_of(runner_.logits().data, DType::kF32, {std::ssize(logit_rows), vocab_})});
  runner_.wait();
  return true;
}

}  // namespace mettle

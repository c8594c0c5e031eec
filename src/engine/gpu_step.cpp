#include "engine/gpu_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "models/block.h"

namespace mettle {
namespace {

// Steps of 1, 2, 4, 8 and then every 8 sequences up to 64, every 32 beyond: the padding costs at most a quarter.
int up_to_bucket(int sequences) {
  if (sequences <= 8) {
    int b = 1;
    while (b < sequences) b *= 2;
    return b;
  }
  const int step = sequences <= 64 ? 8 : 32;
  return (sequences + step - 1) / step * step;
}

constexpr int kLeastContext = 1024;  // contexts in powers of four from here

}  // namespace

GpuStep::GpuStep(Model& model, const Limits& limits, TensorView logits, Place& place)
    : model_(model),
      limits_(limits),
      logits_(logits),
      stage_({.rows = limits.rows,
              .sequences = limits.sequences,
              .logit_rows = limits.sequences,
              .blocks = limits.blocks + limits.sequences},
             place) {}

GpuStep::Bucket GpuStep::bucket_of(int sequences, int context) const {
  // The last bucket is what a step may hold: the model's scratch ends there.
  Bucket b{std::min(up_to_bucket(sequences), limits_.sequences), kLeastContext};
  while (b.context < context) b.context *= 4;
  return b;
}

void GpuStep::capture() {
  for (int n = 1; n <= limits_.sequences; ++n)
    for (int context = 1;; context *= 4) {
      const Bucket bucket = bucket_of(n, std::min(context, limits_.context));
      if (bucket.sequences <= limits_.rows && !graphs_.contains(bucket)) capture_bucket(bucket);
      if (context >= limits_.context) break;
    }
}

void GpuStep::capture_bucket(const Bucket& bucket) {
  const auto n = static_cast<size_t>(bucket.sequences);
  const std::vector<int32_t> no_blocks(1, 0), ids(n, 0);
  std::vector<BatchSequence> sequences(n);
  std::vector<int32_t> logit_rows(n);
  for (size_t i = 0; i < n; ++i) {
    sequences[i] = {.first_row = static_cast<int>(i),
                    .q_len = 1,
                    .ctx_len = 0,
                    .block_table = no_blocks.data(),
                    .state_in = -1,
                    .state_out = limits_.slots > 0 ? 0 : -1};
    logit_rows[i] = static_cast<int32_t>(i);
  }
  Step step{.batch = {.rows = bucket.sequences, .block_size = limits_.block_size, .sequences = sequences},
            .ids = ids.data(),
            .logit_rows = logit_rows,
            .logits = view_of(logits_.data, DType::kF32, {bucket.sequences, logits_.shape[1]})};
  const DeviceBatch& device = stage_.fill(step.batch, step.ids, step.logit_rows, {.most_context = bucket.context});
  step.batch.device = &device;
  try {
    Stream on{.cuda = stream_.handle()};
    graphs_[bucket] = std::make_unique<gpu::Graph>(stream_, [&] { model_.forward(step, on); });
  } catch (const Error& e) {
    graphs_.erase(bucket);
    log::warn("engine: decode of {} sequences in contexts up to {} runs without a graph: {}", bucket.sequences,
              bucket.context, e.message);
  }
}

void GpuStep::run(const Step& step) {
  const auto n = static_cast<int>(step.batch.sequences.size());
  int context = 1;
  for (const BatchSequence& s : step.batch.sequences) context = std::max(context, s.ctx_len + s.q_len);
  const bool decode = step.batch.rows == n && std::ssize(step.logit_rows) == n;
  const Bucket bucket = bucket_of(n, context);
  if (const auto graph = graphs_.find(bucket); decode && graph != graphs_.end()) {
    stage_.fill(step.batch, step.ids, step.logit_rows,
                {.rows = bucket.sequences,
                 .sequences = bucket.sequences,
                 .logit_rows = bucket.sequences,
                 .most_context = bucket.context});
    stage_.upload(&stream_);
    graph->second->launch(stream_);
    return;
  }
  Step on_device = step;
  on_device.batch.device = &stage_.fill(step.batch, step.ids, step.logit_rows);
  stage_.upload(&stream_);
  Stream on{.cuda = stream_.handle()};
  model_.forward(on_device, on);
}

}  // namespace mettle

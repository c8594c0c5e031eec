#include "engine/gpu_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "models/block.h"
#include "ops/cuda/profile_range.h"

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

int64_t GpuStep::driver_bytes(const Limits& limits, int layers) {
  constexpr int64_t kCodeBytes = 64 << 20, kLaunchBytes = 32 << 10, kLaunchesOfALayer = 8;
  return kCodeBytes + std::ssize(buckets_of(limits)) * layers * kLaunchesOfALayer * kLaunchBytes;
}

GpuStep::Bucket GpuStep::bucket_of(const Limits& limits, int sequences, int context) {
  // The last bucket is what a step may hold: the model's scratch ends there.
  if (limits.deterministic) sequences = limits.sequences, context = limits.context;
  Bucket b{std::min(up_to_bucket(sequences), limits.sequences), kLeastContext};
  while (b.context < context) b.context *= 4;
  return b;
}

std::set<GpuStep::Bucket> GpuStep::buckets_of(const Limits& limits) {
  std::set<Bucket> all;
  for (int n = 1; n <= limits.sequences; ++n)
    for (int context = 1;; context *= 4) {
      const Bucket bucket = bucket_of(limits, n, std::min(context, limits.context));
      if (bucket.sequences <= limits.rows) all.insert(bucket);
      if (context >= limits.context) break;
    }
  return all;
}

void GpuStep::capture() {
  for (const Bucket& bucket : buckets_of(limits_)) capture_bucket(bucket);
}

Step GpuStep::stand_in(const Bucket& bucket, int rows) {
  const auto n = static_cast<size_t>(bucket.sequences);
  ids_.assign(static_cast<size_t>(rows), 0);
  logit_rows_.resize(n);
  sequences_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    sequences_[i] = {.first_row = static_cast<int>(i),
                     .q_len = last ? rows - static_cast<int>(i) : 1,
                     .ctx_len = 0,
                     .block_table = &no_block_,
                     .state_in = -1,
                     .state_out = limits_.slots > 0 ? 0 : -1};
    logit_rows_[i] = static_cast<int32_t>(i);
  }
  return {.batch = {.rows = rows, .block_size = limits_.block_size, .sequences = sequences_},
          .ids = ids_.data(),
          .logit_rows = logit_rows_,
          .logits = view_of(logits_.data, DType::kF32, {bucket.sequences, logits_.shape[1]})};
}

void GpuStep::capture_bucket(const Bucket& bucket) {
  Step step = stand_in(bucket, bucket.sequences);
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

void GpuStep::drop_graphs(const std::array<bool, kRowBuckets.size()>& buckets) {
  std::erase_if(graphs_, [&](const auto& graph) {
    return buckets[static_cast<size_t>(mettle::bucket_of(graph.first.sequences))];
  });
}

void GpuStep::run(const Step& step, bool replay, const SampleResult* results) {
  const auto n = static_cast<int>(step.batch.sequences.size());
  int context = 1;
  for (const BatchSequence& s : step.batch.sequences) context = std::max(context, s.ctx_len + s.q_len);
  const Bucket bucket = bucket_of(limits_, n, context);
  const auto graph = graphs_.find(bucket);
  const bool one_each = step.batch.rows == n;
  const bool decode =
      one_each && (limits_.deterministic || (std::ssize(step.logit_rows) == n && graph != graphs_.end()));
  Stream on{.cuda = stream_.handle()};
  const auto upload = [&] {
    stage_.upload(&stream_);
    if (results != nullptr) stage_.take_ids(results, step.batch.rows, &stream_);
  };
  if (!decode && !limits_.deterministic) {
    Step on_device = step;
    on_device.batch.device = &stage_.fill(step.batch, step.ids, step.logit_rows);
    upload();
    return model_.forward(on_device, on);
  }
  const int rows = decode ? bucket.sequences : limits_.rows;
  const DeviceBatch& device = stage_.fill(step.batch, step.ids, step.logit_rows,
                                          {.rows = rows,
                                           .sequences = bucket.sequences,
                                           .logit_rows = bucket.sequences,
                                           .most_context = bucket.context,
                                           .most_q = decode ? 1 : limits_.rows});
  upload();
  if (decode && replay && graph != graphs_.end()) {
    const ProfileRange range("decode graph");
    return graph->second->launch(stream_);
  }
  Step eager = stand_in(bucket, rows);
  eager.batch.device = &device;
  eager.marks = step.marks;
  eager.on_routes = step.on_routes;
  model_.forward(eager, on);
}

}  // namespace mettle

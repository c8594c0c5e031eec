#include "ops/sample_stage.h"

#include <algorithm>

#include "base/error.h"

namespace mettle {
namespace {

constexpr size_t kEntriesPerRow = 1024;  // to begin with

template <class T>
T* take(Place& place, size_t n) {
  return static_cast<T*>(place.take_shared(n * sizeof(T)));
}

}  // namespace

SampleStage::SampleStage(int rows, Place& place) : place_(place), rows_(rows) {
  const auto n = static_cast<size_t>(rows);
  params_ = take<DeviceSampleRow>(place, n);
  results_ = take<SampleResult>(place, n);
  count_room_ = bias_room_ = n * kEntriesPerRow;
  counts_ = take<TokenCount>(place, count_room_);
  biases_ = take<TokenBias>(place, bias_room_);
}

const DeviceSample& SampleStage::fill(std::span<const SampleRow> rows) {
  CHECK(std::ssize(rows) <= rows_, "sample stage: too many rows");
  size_t counts = 0, biases = 0;
  for (const SampleRow& r : rows) counts += r.counts.size(), biases += r.biases.size();
  if (counts > count_room_) counts_ = take<TokenCount>(place_, count_room_ = 2 * counts);
  if (biases > bias_room_) biases_ = take<TokenBias>(place_, bias_room_ = 2 * biases);
  counts = biases = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRow& r = rows[i];
    params_[i] = {.temperature = r.temperature,
                  .top_p = r.top_p,
                  .min_p = r.min_p,
                  .repetition = r.repetition,
                  .presence = r.presence,
                  .frequency = r.frequency,
                  .top_k = r.top_k,
                  .top_logprobs = r.top_logprobs,
                  .random = r.random,
                  .counts_begin = static_cast<int32_t>(counts),
                  .counts = static_cast<int32_t>(r.counts.size()),
                  .biases_begin = static_cast<int32_t>(biases),
                  .biases = static_cast<int32_t>(r.biases.size())};
    std::copy(r.counts.begin(), r.counts.end(), counts_ + counts);
    std::copy(r.biases.begin(), r.biases.end(), biases_ + biases);
    counts += r.counts.size();
    biases += r.biases.size();
  }
  sample_ = {params_, counts_, biases_};
  return sample_;
}

}  // namespace mettle

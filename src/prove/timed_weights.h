// Weights for launches that are timed. On a GPU the same few MB, read again and again, come from its L2 cache (50 MB on
// an H200); serving goes through all layers before it meets a weight again and finds it there never. A proof's experts
// share a few matrices besides. So launches take turns through copies that lie apart, in the GPU's own memory. A choice
// made from cached reads was wrong: moe at 64 rows of the 35B shape, 101 us with one tactic and 110 with another, took
// 139 us with the first where it served (H200, 2026-11-30). On a CPU weights are timed where they lie.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/gdn.h"
#include "ops/moe.h"
#include "tensor/gpu.h"

namespace mettle {

inline constexpr size_t kTimedBytes = size_t{192} << 20;  // that launches go through before they begin anew
inline constexpr size_t kTimedExperts = size_t{1} << 30;  // of experts that lie apart, at most
inline constexpr size_t kTimedCopies = 16;

size_t timed_bytes(const PackedMatrix& m);
size_t timed_bytes(const GdnWeights& w);
size_t timed_bytes(const AttentionWeights& w);
size_t timed_bytes(const MoeWeights& w);  // as they lie apart
PackedMatrix timed_copy(const PackedMatrix& m, Place& place);
GdnWeights timed_copy(const GdnWeights& w, Place& place);
AttentionWeights timed_copy(const AttentionWeights& w, Place& place);
MoeWeights timed_copy(const MoeWeights& w, Place& place);

template <class Weights>
class TimedWeights {
 public:
  // Of weights that outlive it; gpu: a GPU reads them.
  TimedWeights(const Weights& weights, bool gpu) : own_(weights) {
    if (!gpu) return;
    const size_t bytes = std::max<size_t>(timed_bytes(weights), 1);
    const size_t copies = std::clamp<size_t>((kTimedBytes + bytes - 1) / bytes, 1, kTimedCopies);
    try {
      place_ = gpu::place();
      for (size_t i = 0; i < copies; ++i) copies_.push_back(timed_copy(weights, *place_));
    } catch (const Error& e) {
      if (e.code != Code::kDevice) throw;
      copies_.clear();  // no room beside whoever else uses the GPU: cached reads are better than no times
    }
  }
  // Of the next launch.
  const Weights* next() { return copies_.empty() ? &own_ : &copies_[turn_++ % copies_.size()]; }

 private:
  const Weights& own_;
  std::unique_ptr<Place> place_;
  std::vector<Weights> copies_;
  size_t turn_ = 0;
};

}  // namespace mettle

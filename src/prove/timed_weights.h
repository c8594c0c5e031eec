// Weights for launches that are timed. On a GPU the same few MB, read again and again, come from its L2 cache (50 MB on
// an H200); serving goes through all layers before it meets a weight again and finds it there never. A proof's experts
// share a few matrices besides. So launches take turns through copies that lie apart, in the GPU's own memory. A choice
// made from cached reads was wrong: moe at 64 rows of the 35B shape, 101 us with one tactic and 110 with another, took
// 139 us with the first where it served (H200, 2026-11-30). On a CPU weights are timed where they lie; so they are on a
// GPU without room for copies, and whoever reads those times is told.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "ops/attention.h"
#include "ops/gdn.h"
#include "ops/moe.h"
#include "prove/trial.h"

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

// Whether memory was asked for in vain: of a Place, a Buffer or the CUDA runtime, which all fail with kDevice, as a
// lost GPU does.
bool says_no_room(const Error& e);

template <class Weights>
class TimedWeights {
 public:
  // Of weights that outlive it. make: a place for copies of them; empty: none are wanted.
  TimedWeights(const Weights& weights, const TrialContext::MakePlace& make) : own_(weights) {
    if (!make) return;
    const size_t bytes = std::max<size_t>(timed_bytes(weights), 1);
    const size_t copies = std::clamp<size_t>((kTimedBytes + bytes - 1) / bytes, 1, kTimedCopies);
    try {
      place_ = make();
      for (size_t i = 0; i < copies; ++i) copies_.push_back(timed_copy(weights, *place_));
    } catch (const Error& e) {
      if (!says_no_room(e)) throw;
      from_cache_ = true;  // no room beside whoever else uses the GPU: cached reads are better than no times
      copies_.clear();
      place_ = nullptr;  // what was taken of it is wanted for launches
    }
  }
  // Of the next launch.
  const Weights* next() { return copies_.empty() ? &own_ : &copies_[turn_++ % copies_.size()]; }
  bool from_cache() const { return from_cache_; }  // copies were wanted and found no room

 private:
  const Weights& own_;
  std::unique_ptr<Place> place_;
  std::vector<Weights> copies_;
  size_t turn_ = 0;
  bool from_cache_ = false;
};

template <class Weights>
std::unique_ptr<TimedWeights<Weights>> timed_weights(const Weights& weights, const TrialContext& context) {
  auto timed = std::make_unique<TimedWeights<Weights>>(weights, context.copies);
  if (timed->from_cache() && context.on_no_room) context.on_no_room();
  return timed;
}

}  // namespace mettle

// sample on a GPU: what its kernels take, and their launchers.
#pragma once
#include <cstdint>

#include "ops/cpu/reference_math.h"
#include "ops/sample.h"

struct CUstream_st;

namespace mettle::cuda {

constexpr int kSampleIds = 1 << 20;  // a vocabulary has no more

// Logits that bias and penalties changed: a bit per id says whether value[id] stands for the logit.
struct SampleChanges {
  uint32_t* changed = nullptr;  // [rows, words]
  float* value = nullptr;       // [rows, usable]
  int words = 0;
};
inline SampleChanges carve_changes(reference::Carver& c, const SampleProblem& p, int64_t rows) {
  SampleChanges s;
  s.words = (p.usable + 31) / 32;
  s.changed = c.take<uint32_t>(rows * s.words);
  s.value = c.take<float>(rows * p.usable);
  return s;
}

struct SampleLaunch {
  const float* logits = nullptr;  // [rows, vocab]
  int rows = 0, vocab = 0, usable = 0;
  DeviceSample sample;
  SampleResult* results = nullptr;
  SampleChanges changes;
};
inline SampleLaunch launch_of(const SampleArgs& a, const SampleChanges& changes) {
  return {a.logits.as<float>(), a.rows, a.problem.vocab, a.problem.usable, *a.device, a.results.data(), changes};
}

void sample_reference(const SampleLaunch& args, CUstream_st* stream);

// Scratch of the radix kernels. A chunk of a row is one block's share of it.
constexpr int kSampleTile = 4096;        // ids that a block takes at a time
constexpr int kSampleMostChunk = 16384;  // so that a bin's sums fit in 32 bits
constexpr int kSampleBins = 2048;        // of distance from the best token; the last one has no end
constexpr int kSampleList = 8192;        // tokens of a row that are sorted
constexpr int kSampleWarps = 8;          // per block

struct SampleChunk {
  uint64_t best;       // place of its best adjusted token
  float top, sum;      // largest raw logit, sum of exp(logit - top)
  uint32_t bad, pad_;  // a logit is not finite
};

enum SampleMode : uint32_t {
  kSampleDone = 0,
  kSampleDraws = 1,
  kSampleAlternatives = 2,
  kSampleToken = 4,
  kSamplePlain = 8
};

struct SampleState {
  DeviceSampleRow params;
  uint32_t tickets[2];               // blocks that have finished: scan, bins
  uint32_t listed, alternatives;     // entries of the lists
  uint32_t mode;                     // of SampleMode
  uint32_t least_alternative;        // key that at least the wanted number of raw logits reach
  float top, per_temperature;        // adjusted logit of the best token, 1 / temperature
  uint64_t best, total, least_mass;  // place of the best token; mass of all tokens; of those that min-p may keep
  double log_sum;                    // log of the sum of exp(raw logit)
  uint8_t collect[kSampleBins / 8];  // bins whose tokens are sorted
};

struct SampleScratch {
  SampleState* state = nullptr;      // [rows]
  SampleChunk* chunk = nullptr;      // [rows, chunks]
  uint32_t* warp_best = nullptr;     // [rows, chunks, kSampleWarps] keys of raw logits
  uint32_t* bin_count = nullptr;     // [rows, kSampleBins]; then: tokens of earlier bins that are not collected
  uint64_t* bin_mass = nullptr;      // the same of their mass
  uint64_t* drawn = nullptr;         // [rows, kSampleList] places by adjusted logit
  uint64_t* alternatives = nullptr;  // [rows, kSampleList] places by raw logit
  int chunks = 0;                    // most of a row
};
inline SampleScratch carve_scratch(reference::Carver& c, const SampleProblem& p, int64_t rows) {
  SampleScratch s;
  s.chunks = (p.usable + kSampleTile - 1) / kSampleTile;
  s.state = c.take<SampleState>(rows);
  s.chunk = c.take<SampleChunk>(rows * s.chunks);
  s.warp_best = c.take<uint32_t>(rows * s.chunks * kSampleWarps);
  s.bin_count = c.take<uint32_t>(rows * kSampleBins);
  s.bin_mass = c.take<uint64_t>(rows * kSampleBins);
  s.drawn = c.take<uint64_t>(rows * kSampleList);
  s.alternatives = c.take<uint64_t>(rows * kSampleList);
  return s;
}

void sample_radix(const SampleLaunch& args, const SampleScratch& scratch, CUstream_st* stream);
void sample_finish(const SampleLaunch& args, const SampleScratch& scratch, CUstream_st* stream);  // its last kernel

}  // namespace mettle::cuda

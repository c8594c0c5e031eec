// One row of sample, in parts that several threads can share. Each looks at a slice of the vocabulary and deals it into
// bins; one thread puts together what the slices found. A slice is a run of pieces of kPiece ids. What is kept of a
// piece does not depend on who looked at it, and masses are added as integers: the result is the same, bit for bit,
// however many slices there are.
#pragma once
#include "ops/cpu/product.h"
#include "ops/sample.h"

namespace mettle::cpu {

// Scratch of one row at a time; defined where it is used.
struct SampleScratch {
  static constexpr int kPiece = 1024, kAlternatives = 20;

  struct Piece {
    double sum;    // of exp(logit - the largest of the piece)
    float most;    // the largest adjusted logit
    int32_t best;  // its id, where logits are adjusted
    bool finite;
  };
  struct Slice {
    int64_t mass, heavy;  // of all its tokens; of those that weigh at least min_p
    int held;
    int32_t ids[kAlternatives];  // of the largest raw logits, best first
  };

  int slices = 0;
  float* value = nullptr;    // [usable] adjusted logits
  double* exact = nullptr;   // [usable] the same in float64, when the row has penalties or biases
  float* weight = nullptr;   // [usable]
  uint16_t* bin = nullptr;   // [pieces * kPiece]
  int32_t* order = nullptr;  // [usable] ids of one bin, in order
  float* top = nullptr;      // [pieces] the largest raw logit
  float* share = nullptr;    // [pieces] exp of its distance from the row's
  Piece* piece = nullptr;
  Slice* slice = nullptr;
  int64_t* bin_mass = nullptr;   // [slices, bins]
  int32_t* bin_count = nullptr;  // [slices, bins]

  // With a carver that only counts, the pointers are null.
  static SampleScratch carve(reference::Carver& carver, const SampleProblem& problem, int slices);
};

// Into how many slices so many members cut a row: each gets two pieces at least.
int sample_slices(const SampleProblem& problem, int members);

class SampleRowParts {
 public:
  SampleRowParts(const Kernels& kernels, const SampleProblem& problem, const SampleScratch& scratch,
                 const float* logits, const SampleRow& row);

  // The order of calls: look() of every slice; settle(), which says whether the token is drawn; if so deal() of every
  // slice, then draw(). look() and deal() of different slices may run at once.
  void look(int slice);
  bool settle(SampleResult& result);
  void deal(int slice);
  void draw(SampleResult& result);

 private:
  struct Ids {
    int begin, end;
  };
  Ids piece_ids(int64_t piece) const;
  bool before(int32_t a, int32_t b) const;
  void adjust(Ids ids);
  void note_alternatives(SampleScratch::Slice& own, Ids ids) const;
  void tell_alternatives(SampleResult& result) const;
  int32_t best_token() const;
  int bin_of(float value) const;

  int64_t mass_of_bin(int bin) const;
  int64_t mass_of_first(int count);
  int64_t mass_until(int64_t limit);
  int32_t token_beyond(int64_t target);
  void collect(int bin);
  int64_t mass_of(int32_t id) const { return static_cast<int64_t>(s_.weight[id] * unit_); }

  const Kernels& kernels_;
  const SampleProblem& p_;
  const SampleScratch& s_;
  const float* logits_;
  const SampleRow& row_;
  int64_t pieces_;
  int wanted_;
  const float* value_;
  double* exact_ = nullptr;
  double log_sum_ = 0;
  int32_t best_ = 0;
  float most_ = 0, factor_ = 1, unit_ = 1;
  int collected_ = -1, collected_count_ = 0;
};

}  // namespace mettle::cpu

// A step on a GPU: the batch's image, the stream, and the captured graphs of decode steps. Decode steps (every sequence
// has one row and wants its logits) replay the graph of the next larger bucket, filled up with padding; anything else
// is launched kernel by kernel.
// What a kernel does may follow from the counts of a step (tiles, splits), never from what else is in it: that is
// judged bit for bit. So a deterministic engine's steps are all filled up with padding to one of two shapes: a row for
// each of the most sequences, or as many rows as a step may have.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "models/model.h"
#include "ops/batch_stage.h"
#include "tensor/gpu.h"

namespace mettle {

class GpuStep {
 public:
  struct Limits {
    int rows = 0, sequences = 0;
    int64_t blocks = 0;  // of the paged cache; no step has longer block tables in all
    int block_size = 16, context = 0;
    int64_t slots = 0;
    bool deterministic = false;  // steps of one row a sequence then want the logits of all rows or of none
  };
  // About what the driver takes of the device: for the code of kernels that are launched, 64 MiB (H200: 51 MiB beyond
  // all allocations with a model of few layers), and for captured graphs 32 KiB a launch, eight of them a layer (H200:
  // 33 graphs of 40 layers took 430 MiB with the code).
  static int64_t driver_bytes(const Limits& limits, int layers);
  // logits: what every step of a graph writes, [sequences, vocab] f32.
  GpuStep(Model& model, const Limits& limits, TensorView logits, Place& place);

  // Records the decode graphs; a bucket that cannot be captured runs eagerly and is told.
  void capture();
  // Enqueues the step on stream(). Without `replay` a decode step's graph is not used: the same bucket, padding and
  // kernels are launched one by one.
  // `results`: of a step ahead of it on the stream; ids are then indices into them.
  void run(const Step& step, bool replay = true, const SampleResult* results = nullptr);
  // From now on every step is launched kernel by kernel; or every step whose rows are in one of these buckets (see
  // ops/dispatch.h): a graph holds on to the backends it was recorded with.
  void drop_graphs() { graphs_.clear(); }
  void drop_graphs(const std::array<bool, kRowBuckets.size()>& buckets);
  gpu::Stream& stream() { return stream_; }
  int graphs() const { return static_cast<int>(graphs_.size()); }

 private:
  struct Bucket {
    int sequences = 0, context = 0;
    auto operator<=>(const Bucket&) const = default;
  };
  static Bucket bucket_of(const Limits& limits, int sequences, int context);
  static std::set<Bucket> buckets_of(const Limits& limits);
  void capture_bucket(const Bucket& bucket);
  // A step of so many rows that fills the bucket; what its batch says of sequences counts for launches only.
  Step stand_in(const Bucket& bucket, int rows);

  Model& model_;
  Limits limits_;
  TensorView logits_;
  gpu::Stream stream_;
  BatchStage stage_;
  std::map<Bucket, std::unique_ptr<gpu::Graph>> graphs_;
  std::vector<BatchSequence> sequences_;  // of the stand-in, as the two below
  std::vector<int32_t> ids_, logit_rows_;
  int32_t no_block_ = 0;
};

}  // namespace mettle

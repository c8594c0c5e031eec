// A model on one rank: what it needs (problems, weights, caches) and one step of it. The engine knows this and nothing
// of any architecture. Life: make_model (plans from config and formats) -> problems -> choose -> load -> ready ->
// forward again and again, without allocation.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/weight_source.h"
#include "models/choice_source.h"
#include "models/comm.h"
#include "models/formats.h"
#include "ops/batch.h"
#include "ops/problem.h"
#include "tensor/place.h"

namespace mettle {

struct ModelInfo {
  std::string architecture;  // name in models.def
  int vocab = 0, hidden = 0, layers = 0;
  int context = 0;      // positions the model was made for
  int mtp_layers = 0;   // recognised, kept aside
  int cut_ranks = 1;    // how many ranks share the model
  int requantised = 0;  // matrices that come in another format than the checkpoint's
  // Of an FP8 cache: attention layers, and those of them whose scales the checkpoint has; the others take 1.
  int attention_layers = 0, scaled_layers = 0;
};

// One cache of one layer. Paged: `shape` is what one token takes; slot: what one sequence takes.
struct CacheEntry {
  enum class Kind : uint8_t { kPaged, kSlot };
  Kind kind = Kind::kPaged;
  std::string name;  // layers.3.k
  DType dtype = DType::kF32;
  Shape shape;
  int64_t bytes() const { return shape.elements() * static_cast<int64_t>(size_of(dtype)); }
};

// Bytes of packed weights by the format they had in the checkpoint; norms and the like count as f32.
struct WeightBytes {
  std::array<int64_t, 5> by_format{};  // index: WeightFormat
  int64_t total() const;
  std::string text() const;  // "nvfp4 9.2 MiB, bf16 3.9 MiB"
};

struct ModelOptions {
  Activation activation = Activation::kBf16;
  DeviceKind device = DeviceKind::kCpu;  // whose layout the weights get
  int rank = 0, ranks = 1;
  int block_size = 16;
  DenseDtype dense = DenseDtype::kAuto;
  CacheFormat cache = CacheFormat::kActivation;
};

// Most that one step may hold; scratch is sized for it.
struct StepLimits {
  int rows = 0, logit_rows = 0, team_members = 1;
};

struct Step {
  Batch batch;
  const int32_t* ids = nullptr;         // [batch.rows]; a GPU reads batch.device instead
  std::span<const int32_t> logit_rows;  // rows that want logits, ascending
  TensorView logits;                    // out [logit_rows, vocab] f32, shared by the ranks
  // Present: the output of every op is looked at as well, and marks[rank][row] becomes the first place where that row
  // was not finite (see Model::place_of). On a GPU in memory that the device writes.
  std::span<int32_t* const> marks;
  // Present: told where every layer's chosen experts will stand, [rows, top_k], once its work is enqueued; the next
  // layer writes there too.
  const std::function<void(int layer, const int32_t* experts, int top_k)>* on_routes = nullptr;
};

// An op's place in a model: "moe of layer 3 (cpu_gemm/avx512)".
struct OpPlace {
  std::string_view op;  // empty: no place
  std::string where;    // "of layer 3"
  std::string backend, tactic;
  std::string text() const;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;
  virtual std::span<const CacheEntry> caches() const = 0;
  // Every different problem of this rank; sampling is the engine's.
  virtual std::vector<AnyProblem> problems() const = 0;
  virtual WeightBytes weight_bytes() const = 0;

  virtual void choose(ChoiceSource& choices) = 0;
  virtual size_t scratch_bytes(const StepLimits& limits) const = 0;
  // Fills every weight of this rank, in memory of `place`, which outlives the model and holds its scratch too.
  // `loaded` hears the bytes that are in place so far.
  virtual void load(WeightSource& source, Place& place, const std::function<void(int64_t loaded)>& on_progress) = 0;
  // caches: one view per entry of caches(): paged [blocks, block_size, ...shape], slot [slots, ...shape].
  virtual void ready(const StepLimits& limits, std::vector<TensorView> caches, Comm& comm) = 0;
  // What forward uses between its ops: a step's results may not depend on what lies there. Empty before ready().
  virtual std::span<uint8_t> scratch() = 0;
  // One step. All ranks of a comm call it with the same step.
  virtual void forward(const Step& step, Stream& stream) = 0;
  // The place of a mark that a step of so many rows and logit rows left.
  virtual OpPlace place_of(int32_t mark, int rows, int logit_rows) const = 0;
};

}  // namespace mettle

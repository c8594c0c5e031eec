// What every op's backends have in common. An op X is a struct XOp { Problem, Args, kName }; its backends stand in
// X.def, one line each, one file each: src/ops/cpu/X_<method>.cpp defines `extern const Backend<XOp> X_<method>`.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_team.h"
#include "ops/packed.h"
#include "ops/verdict.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace mettle {

// What x is between the steps of a layer. W4A16 (kBf16) and FP32 activations are different problems with different
// oracles. Residual, partials, logits and recurrent state are float32 in both.
enum class Activation : uint8_t { kF32, kBf16 };
std::string_view name_of(Activation activation);  // f32, bf16
inline DType dtype_of(Activation a) { return a == Activation::kF32 ? DType::kF32 : DType::kBF16; }

// Roundings inside an op that a backend declares; shown by explain, part of the verdict's key, replayed by the oracle.
// With Activation::kF32 nothing is rounded and these are ignored. What is not declared here is float32.
enum class Rounds : uint8_t { kF32, kBf16 };
struct Numerics {
  Rounds h = Rounds::kBf16;         // moe: silu(gate) * up before the down product
  Rounds gate_up = Rounds::kF32;    // moe: gate and up before silu
  Rounds q = Rounds::kF32;          // attention: q after norm and rotary (k and v take the cache's dtype)
  Rounds p = Rounds::kF32;          // attention: probabilities before the product with V
  Rounds core_out = Rounds::kBf16;  // attention, gdn: gated core output before the output projection
  Rounds gdn_inner = Rounds::kF32;  // gdn: chunk intermediates
  bool deterministic = true;        // two runs on the same input are bitwise equal
  std::string text() const;         // h=bf16 q=f32 ...
};

// One launch variant; proved by itself.
struct Tactic {
  std::string name;  // "avx512bf16", "scalar"
  Isa isa = Isa::kScalar;
  int variant = 0;  // meaning is the backend's own
};

// Where an op runs. On a CPU: the team of the rank. On a GPU: a cudaStream_t; a run only enqueues.
struct Stream {
  ThreadTeam* team = nullptr;
  void* cuda = nullptr;
};

struct Workspace {
  uint8_t* data = nullptr;  // 64-byte aligned, contents undefined
  size_t bytes = 0;
};

template <class Op>
struct Backend {
  using Problem = typename Op::Problem;
  using Args = typename Op::Args;

  std::string_view name;
  Numerics numerics;
  Layout layout = Layout::kTile16;  // of the weights it reads
  DeviceKind kind = DeviceKind::kCpu;
  // OK, or the refusal; pure: explain calls it for any device.
  Verdict (*supports)(const Problem&, const Device&) = nullptr;
  // Every launch variant that this device can run; at least one when supports() says OK.
  std::vector<Tactic> (*tactics)(const Problem&, const Device&) = nullptr;
  // Bytes of Args::ws for up to `rows` rows and `team_members` threads.
  size_t (*workspace)(const Tactic&, const Problem&, int rows, int team_members) = nullptr;
  // Computes; never allocates, never decides, never waits for the device, trusts its arguments (the dispatcher checked
  // them). On a GPU it can be captured in a graph. Null: this program was built without it.
  void (*run)(const Tactic&, const Args&, Stream&) = nullptr;
};

// All backends of an op, of every kind of device, in the order of its .def file; `reference` is among them for each.
template <class Op>
std::span<const Backend<Op>* const> backends_of();

// Tactics scalar..avx512bf16 that the device has; helper of CPU backends.
std::vector<Tactic> isa_tactics(const Device& device);

}  // namespace mettle

// Whole layers on a GPU: every op of a few steps, in its place, beside the reference of its device. The reference runs
// first, everything that it may change is put back, and what serves runs under the same inputs; so no difference is
// carried on and a row's own roundings bound it. Between the ops, what one left is bit for bit what the next finds:
// residual, x, partials, caches and states. All comparing is done on the device.
//
// Two runs of an op differ by the order of float32 sums, which can turn a rounding to bf16 inside it by one ulp, 2^-8.
// Of a row's norm that is: linear 2^-12; join's x, moe, gdn 2^-8; attention 2^-7 (three roundings), gdn with bf16
// intermediates 2^-6; caches 2^-8, of e4m3 2^-5; states 2^-10. On an H200 no row of 29.3 million had more than 0.6 of
// it, with weights that are drawn; those of a checkpoint are less even, so four times as much is allowed. An element
// may be eight times as far from its reference, of its own size and the row's root mean square. Where scores tie,
// another expert may be chosen: such rows are not compared, and more than 1 in 100 are refused.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/layer_proof.h"
#include "models/choice_source.h"
#include "tensor/rows_apart.h"

namespace mettle {

class LayerBeside {
 public:
  // blocks, slots: of the caches, what the steps may write. `room`: memory that is taken beforehand.
  struct Room {
    int64_t outputs = 0, workspace = 0, rows = 0;  // rows: of one comparison
    int64_t bytes() const { return 2 * outputs + workspace; }
  };
  LayerBeside(Runner& runner, ChoiceSource& choices, int64_t blocks, int64_t slots, const Room& room);
  static thread_local LayerBeside* current;  // whom WatchingChoices tell

  // rows: of the step's own, behind which may come padding; one layer in `stride` of each kind is compared, others
  // in the next step.
  void begin_step(std::string step, int rows, std::span<const int32_t> logit_rows, int stride);
  template <class Op>
  void run(const typename Op::Args& args, Stream& stream);
  // Caches and states are as the last op left them.
  void look_at_caches();
  void tell(LayerProof& proof) const;  // what was seen
  const Verdict& verdict() const { return verdict_; }

  // What an op may change, as rows that are compared.
  struct Output {
    const char* name = "";
    void* data = nullptr;
    DType dtype = DType::kF32;
    int64_t rows = 0, cols = 0;
    int64_t compared = 0;  // of the rows, from the first
    double bound = 0;
    bool ids = false;            // of experts: rows with others are counted
    bool rows_of_model = false;  // no layer's: compared in every step
    size_t bytes() const { return static_cast<size_t>(rows * cols) * size_of(dtype); }
  };

 private:
  struct Known {  // bits of rows that an op left
    std::vector<uint64_t> bits;
    std::string writer;
    const void* weights = nullptr;  // of a cache: of the layer whose it is
    Output rows;
  };

  std::vector<Output> outputs(const EmbedArgs& a, const Numerics& n) const;
  std::vector<Output> outputs(const JoinArgs& a, const Numerics& n) const;
  std::vector<Output> outputs(const LinearArgs& a, const Numerics& n) const;
  std::vector<Output> outputs(const MoeArgs& a, const Numerics& n) const;
  std::vector<Output> outputs(const AttentionArgs& a, const Numerics& n) const;
  std::vector<Output> outputs(const GdnArgs& a, const Numerics& n) const;
  Output of_step(const char* name, const TensorView& t, double bound) const;

  void look(const EmbedArgs&) {}
  void look(const JoinArgs& a);
  void look(const LinearArgs& a);
  void look(const MoeArgs& a);
  void look(const AttentionArgs& a);
  void look(const GdnArgs& a);
  void left(const EmbedArgs& a);
  void left(const JoinArgs& a);
  void left(const LinearArgs&) {}
  void left(const MoeArgs& a);
  void left(const AttentionArgs& a);
  void left(const GdnArgs& a);
  void find_cache(const Output& cache, const void* weights);
  Known known(const Output& rows, const void* weights = nullptr);
  std::string place_of(std::string_view op) const;  // the op that comes

  // Bits of rows as they are now.
  std::vector<uint64_t> bits_of(const Output& rows);
  std::span<const RowApart> apart(const Output& have, const void* need);
  void demand_same(const char* what, const Known& known, const Output& found);
  std::vector<bool> rerouted(const Output& ids, const void* need);
  void compare(const Output& have, const void* need, const std::vector<bool>& skip);
  [[noreturn]] void refuse_as(VerdictCode code, std::string have, std::string need, const std::string& what) const;
  template <class Op>
  const Choice<Op>* reference(const typename Op::Problem& problem);
  void copy(void* to, const void* from, size_t bytes);
  uint8_t* room(size_t which, size_t bytes);

  Runner& runner_;
  ChoiceSource& choices_;
  const int64_t blocks_, slots_;
  std::unique_ptr<Place> place_;
  std::pair<uint8_t*, size_t> rooms_[3];
  std::pair<RowApart*, int64_t> facts_{};
  Verdict verdict_;

  std::string step_, name_, writer_;
  int rows_ = 0, stride_ = 1, steps_ = 0;
  std::vector<int32_t> logit_rows_;
  std::map<std::string_view, int> seen_;  // ops of each kind in this step
  Known residual_, x_, partial_;
  std::map<const void*, Known> caches_;

  int ops_ = 0;
  uint64_t compared_ = 0, routed_ = 0, rerouted_ = 0;
  double worst_ = 0;  // of a bound

  template <class Op>
  using References = std::vector<std::pair<typename Op::Problem, Choice<Op>>>;
  std::tuple<References<EmbedOp>, References<JoinOp>, References<LinearOp>, References<MoeOp>, References<AttentionOp>,
             References<GdnOp>>
      references_;
};

// prove_layers() beside the references of the device; of one rank.
LayerProof prove_layers_beside(Runner& runner, const Runner::Sizes& sizes, ChoiceSource& choices);
// What that takes on the device while it runs, at most: for the plan.
int64_t layers_beside_bytes(const Model& model, const Runner::Sizes& sizes, DeviceKind kind);

}  // namespace mettle

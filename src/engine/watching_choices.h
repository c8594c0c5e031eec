// Choices whose backends hand every op to the watch of the thread they run on. For proofs of whole layers.
#pragma once
#include "models/model.h"

namespace mettle {

// Watch: a type with `static thread_local Watch* current` and `template <class Op> void run(args, stream)`.
template <class Watch>
class WatchingChoices : public ChoiceSource {
 public:
  Choices<EmbedOp> choose(const EmbedProblem&) override { return all<EmbedOp>(); }
  Choices<JoinOp> choose(const JoinProblem&) override { return all<JoinOp>(); }
  Choices<LinearOp> choose(const LinearProblem&) override { return all<LinearOp>(); }
  Choices<MoeOp> choose(const MoeProblem&) override { return all<MoeOp>(); }
  Choices<AttentionOp> choose(const AttentionProblem&) override { return all<AttentionOp>(); }
  Choices<GdnOp> choose(const GdnProblem&) override { return all<GdnOp>(); }
  Choices<SampleOp> choose(const SampleProblem&) override { return {}; }  // the engine's, no part of a step

 private:
  template <class Op>
  static Choices<Op> all() {
    static const Backend<Op> watching = {.name = "watched",
                                         .run = [](const Tactic&, const typename Op::Args& args, Stream& stream) {
                                           Watch::current->template run<Op>(args, stream);
                                         }};
    Choices<Op> choices;
    choices.by_bucket.fill({&watching, {}});
    return choices;
  }
};

// While it lives, the watch sees every op of the model; then the served choices stand again, whatever happened.
template <class Watch>
class Watched {
 public:
  Watched(Model& model, ChoiceSource& choices, Watch& watch) : model_(model), choices_(choices) {
    Watch::current = &watch;
    WatchingChoices<Watch> watching;
    model.choose(watching);
  }
  ~Watched() {
    Watch::current = nullptr;
    model_.choose(choices_);
  }
  Watched(const Watched&) = delete;

 private:
  Model& model_;
  ChoiceSource& choices_;
};

// Rows of a call, of a batch or of a matrix.
template <class Op>
int rows_of_args(const typename Op::Args& a) {
  if constexpr (requires { a.batch; })
    return a.batch->device != nullptr ? a.batch->device->rows : a.batch->rows;
  else
    return a.rows;
}

}  // namespace mettle

// Captured graphs. While serving, a GPU replays launches that were captured once, with other contents behind the same
// pointers: other rows of x, other lengths, sequences that are padding now. So on a GPU the second launch of a case is
// also captured, over other inputs than the case's, replayed over those, and then twice over the case's own: each time
// it must write what the launch wrote, bit for bit. Found that way: what was taken from the host when the graph was
// made, pointers that have gone stale, counters that only the first replay finds right, writes for padding.
#pragma once
#include <cstring>
#include <vector>

#include "prove/trial.h"

namespace mettle {

// What lies behind a launch's arguments, and the other contents that its graph is captured over.
class Replay {
 public:
  explicit Replay(const EmbedArgs& args);
  explicit Replay(const JoinArgs& args);
  explicit Replay(const LinearArgs& args);
  explicit Replay(const MoeArgs& args);
  explicit Replay(const AttentionArgs& args);
  explicit Replay(const GdnArgs& args);
  explicit Replay(const SampleArgs& args);
  ~Replay();  // the case's own inputs are back, whatever ended it
  Replay(const Replay&) = delete;

  // The launch has been made: what it wrote is what is wanted.
  void keep();
  // Other contents in place, with outputs as they were before the launch; the same arguments as the host sees them
  // then.
  void put_others();
  template <class Args>
  Args others(Args args) const {
    if constexpr (requires { args.batch; }) args.batch = &batch_;
    if constexpr (requires { args.params; }) args.params = params_;
    if constexpr (requires { args.device_ids; }) args.ids = ids_.data();
    return args;
  }
  // The case's own contents again.
  void put_own();
  // OVERRUN when a replay over the others wrote caches or states that are none of its sequences'.
  Verdict check_others() const;
  // NONDETERMINISTIC when the outputs are not what the launch wrote.
  Verdict check_own() const;

 private:
  enum class Other : uint8_t { kKept, kReversed, kZero };
  struct Part {
    uint8_t* data;
    size_t bytes, element;
    Other other;
    std::vector<uint8_t> own;
  };
  struct Output {
    const char* name;
    uint8_t* data;
    size_t bytes;
    std::vector<uint8_t> before, wanted;
    size_t row_bytes = 0;  // of a cache or a state, whose rows that the others may write are marked
    std::vector<char> of_others = {};
  };
  void input(const void* data, size_t bytes, size_t element, Other other);
  void input(const TensorView& view, Other other = Other::kReversed);
  void output(const char* name, const TensorView& view);
  void output(const char* name, void* data, size_t bytes);
  void batch(const Batch& batch);
  void put_outputs();

  std::vector<Part> inputs_;
  std::vector<Output> outputs_;
  Workspace ws_;
  // Of the others: half as much context, states that start from zeros, the later half of the sequences padding.
  Batch batch_;
  std::vector<BatchSequence> sequences_;
  int kept_ = 0;  // sequences that are no padding
  const DeviceBatch* device_ = nullptr;
  std::vector<SampleRow> params_;
  DeviceSampleRow* device_params_ = nullptr;
  std::vector<int32_t> ids_;
};

// NOT_CAPTURABLE when recording the launches fails; the stream is usable afterwards.
std::unique_ptr<gpu::Graph> capture(gpu::Stream& stream, const std::function<void()>& enqueue);

// TrialContext::run, and on a GPU its replays. Throws ProofFailure at the first demand that is not met.
template <class Op>
void run_replayed(const TrialContext& context, const Backend<Op>& backend, const Tactic& tactic,
                  const typename Op::Args& args, const Examination* examination) {
  if (context.gpu == nullptr || examination == nullptr) return context.run(backend, tactic, args);
  Replay replay(args);
  context.run(backend, tactic, args);
  replay.keep();
  replay.put_others();
  const typename Op::Args others = replay.others(args);
  Stream on = context.stream();
  std::unique_ptr<gpu::Graph> graph;
  try {
    graph = capture(*context.gpu, [&] { backend.run(tactic, others, on); });
  } catch (const ProofFailure& failure) {
    examination->fail_with(failure.verdict);
  }
  const auto launch = [&] {
    graph->launch(*context.gpu);
    context.gpu->wait();
    context.alive();
  };
  launch();
  examination->demand(replay.check_others());
  for (int again = 0; again < 2; ++again) {
    replay.put_own();
    launch();
    if (backend.numerics.deterministic) examination->demand(replay.check_own());
  }
}

}  // namespace mettle

// Looks at every op of a step while it runs: what it finds, what it leaves, and whether that is right. For the proof of
// whole layers.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/choice_source.h"
#include "ops/oracle.h"
#include "prove/examination.h"

namespace mettle {

// Weights as the oracle takes them, read back from packed ones: exact, but for one rounding to float32 of element times
// row scale, an eighth or less of what the sum itself is allowed.
class ReadBack {
 public:
  // Rows [first, first + count) of m, valid until make_room().
  RawSegments rows(const PackedMatrix& m, int64_t first, int64_t count, ThreadTeam* team);
  RawSegments all(const PackedMatrix& m, ThreadTeam* team) { return rows(m, 0, m.rows, team); }
  // Lets go of everything when it is much.
  void make_room();

 private:
  std::map<std::pair<const void*, int64_t>, std::vector<float>> kept_;
  size_t floats_ = 0;
};

class LayerWatch {
 public:
  // Both outlive it: the backends that serve, and the entry that counts what is compared.
  LayerWatch(ChoiceSource& choices, ProofEntry& entry) : choices_(choices), entry_(entry), examination_(entry) {}

  static thread_local LayerWatch* current;  // whom WatchingChoices tell

  // logit_rows: of the step that comes. `judging`: values are judged; else only what follows what is learnt.
  void begin_step(std::string step, std::span<const int32_t> logit_rows, bool judging);
  // What caches and states hold is what the last op on them left.
  void look_at_caches();

  template <class Op>
  void run(const typename Op::Args& args, Stream& stream);

  const Verdict& verdict() const { return verdict_; }  // the first demand that was not met
  int judged() const { return judged_; }

 private:
  struct Cache {  // of one layer: the bytes that the step's sequences own
    const uint8_t* data = nullptr;
    const void* weights = nullptr;  // of the layer whose it is
    std::vector<Span> spans;
    uint64_t hash = 0;
    std::string owner;
  };

  void look(const EmbedArgs& a);
  void look(const JoinArgs& a);
  void look(const LinearArgs& a);
  void look(const MoeArgs& a);
  void look(const AttentionArgs& a);
  void look(const GdnArgs& a);
  void judge(const EmbedArgs& a, const Numerics& numerics, ThreadTeam& team);
  void judge(const JoinArgs& a, const Numerics& numerics, ThreadTeam& team);
  void judge(const LinearArgs& a, const Numerics& numerics, ThreadTeam& team);
  void judge(const MoeArgs& a, const Numerics& numerics, ThreadTeam& team);
  void judge(const AttentionArgs& a, const Numerics& numerics, ThreadTeam& team);
  void judge(const GdnArgs& a, const Numerics& numerics, ThreadTeam& team);
  void judge_gdn(const GdnArgs& a, const Numerics& numerics, ThreadTeam& team);

  void demand_same(const char* what, const std::vector<uint8_t>& left, const void* found) const;
  void demand_untouched(const Cache& cache) const;
  void find_cache(const TensorView& cache, const void* weights) const;
  void left_cache(const TensorView& cache, const void* weights, std::vector<Span> spans);
  // Whether this op is the last of its kind in the step.
  bool is_last_layer(std::string_view op, const void* weights);

  ChoiceSource& choices_;
  ProofEntry& entry_;
  Examination examination_;
  Verdict verdict_;
  bool judging_ = false;
  int judged_ = 0;
  std::string step_, name_, writer_;  // the step; the op at work; the last op that ran
  std::vector<int32_t> logit_rows_;

  std::vector<uint8_t> residual_, x_, partial_;  // as the last op that wrote them left them
  std::map<std::string_view, const void*> last_weights_;
  std::map<const void*, Cache> caches_;
  std::vector<float> before_[2];  // residual; or states that a gdn op starts from
  ReadBack read_back_;
};

}  // namespace mettle

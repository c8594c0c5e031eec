#include "engine/layer_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "engine/test_support.h"
#include "models/registry.h"
#include "prove/trial.h"
#include "tensor/place.h"

namespace mettle {
namespace {

using ::testing::HasSubstr;

// Backends that are right alone, by any proof of their op, and wrong in their place.
enum class Fault {
  kNone,
  kStaleSelection,
  kTableInWorkspace,
  kScribblesOnResidual,
  kScribblesOnCache,
  kRoundsResidual
};

struct Seen {  // addresses that an op of a chain has no business with
  float* residual = nullptr;
  uint16_t* k_cache = nullptr;
  const GdnWeights* gdn = nullptr;
} seen;

template <class Op>
const Backend<Op>& right() {
  return reference_of<Op>();
}

// Takes the selection that lies in its memory for its own when there is one.
void stale_selection(const Tactic& t, const MoeArgs& a, Stream& s) {
  MoeArgs args = a;
  if (a.selection.given) return right<MoeOp>().run(t, a, s);
  std::set<int32_t> ids(a.selection.ids, a.selection.ids + a.problem.top_k);
  args.selection.given =
      ids.size() == static_cast<size_t>(a.problem.top_k) && *ids.begin() >= 0 && *ids.rbegin() < a.problem.experts;
  for (int i = 0; i < a.rows * a.problem.top_k; ++i)
    args.selection.given &= a.selection.ids[i] >= 0 && a.selection.ids[i] < a.problem.experts;
  right<MoeOp>().run(t, args, s);
}

// Keeps a table in its workspace and takes what lies there for it.
constexpr char kTable[] = "a table of this layer";
void table_in_workspace(const Tactic& t, const GdnArgs& a, Stream& s) {
  uint8_t* at = a.ws.data + a.ws.bytes - sizeof kTable;
  GdnArgs args = a;
  args.ws.bytes -= sizeof kTable;
  if (std::memcmp(at, kTable, sizeof kTable) == 0 && seen.gdn != nullptr) args.weights = seen.gdn;
  right<GdnOp>().run(t, args, s);
  std::memcpy(at, kTable, sizeof kTable);
  seen.gdn = args.weights;
}

void scribbles_on_residual(const Tactic& t, const AttentionArgs& a, Stream& s) {
  right<AttentionOp>().run(t, a, s);
  if (seen.residual != nullptr) seen.residual[3] += 0.001f;
}

void scribbles_on_cache(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>().run(t, a, s);
  if (seen.k_cache != nullptr) seen.k_cache[1] ^= 1;
}

void join_shows_residual(const Tactic& t, const JoinArgs& a, Stream& s) {
  right<JoinOp>().run(t, a, s);
  seen.residual = a.residual.as<float>();
}

void attention_shows_cache(const Tactic& t, const AttentionArgs& a, Stream& s) {
  right<AttentionOp>().run(t, a, s);
  seen.k_cache = a.k_cache.as<uint16_t>() +
                 int64_t{a.batch->sequences[0].block_table[0]} * a.k_cache.shape.elements() / a.k_cache.shape[0];
}

// Wrong in numbers alone: the judge's rules hold in the chain as well.
void rounds_residual(const Tactic& t, const JoinArgs& a, Stream& s) {
  right<JoinOp>().run(t, a, s);
  for (int64_t i = 0; i < a.residual.shape.elements(); ++i)
    a.residual.as<float>()[i] = bf16_to_float(float_to_bf16(a.residual.as<float>()[i]));
}

template <class Op>
const Backend<Op>* planted(void (*run)(const Tactic&, const typename Op::Args&, Stream&), size_t more_workspace = 0) {
  static Backend<Op> backends[8];
  static size_t extra = 0;
  static int count = 0;
  for (int i = 0; i < count; ++i)
    if (backends[i].run == run) return &backends[i];
  Backend<Op>& b = backends[count++];
  b = right<Op>();
  b.name = "planted";
  b.run = run;
  if (more_workspace > 0) {
    extra = more_workspace;
    b.workspace = [](const Tactic& t, const typename Op::Problem& p, int rows, int members) {
      return right<Op>().workspace(t, p, rows, members) + extra;
    };
  }
  return &b;
}

class FaultyChoices : public testing::UnprovedChoices {
 public:
  explicit FaultyChoices(Fault fault) : fault_(fault) {}
  Choices<MoeOp> choose(const MoeProblem& p) override {
    Choices<MoeOp> c = UnprovedChoices::choose(p);
    if (fault_ == Fault::kStaleSelection) replace(c, planted<MoeOp>(stale_selection));
    if (fault_ == Fault::kScribblesOnCache) replace(c, planted<MoeOp>(scribbles_on_cache));
    return c;
  }
  Choices<AttentionOp> choose(const AttentionProblem& p) override {
    Choices<AttentionOp> c = UnprovedChoices::choose(p);
    if (fault_ == Fault::kScribblesOnResidual) replace(c, planted<AttentionOp>(scribbles_on_residual));
    if (fault_ == Fault::kScribblesOnCache) replace(c, planted<AttentionOp>(attention_shows_cache));
    return c;
  }
  Choices<GdnOp> choose(const GdnProblem& p) override {
    Choices<GdnOp> c = UnprovedChoices::choose(p);
    if (fault_ == Fault::kTableInWorkspace) replace(c, planted<GdnOp>(table_in_workspace, sizeof kTable));
    return c;
  }
  Choices<JoinOp> choose(const JoinProblem& p) override {
    Choices<JoinOp> c = UnprovedChoices::choose(p);
    if (fault_ == Fault::kScribblesOnResidual) replace(c, planted<JoinOp>(join_shows_residual));
    if (fault_ == Fault::kRoundsResidual) replace(c, planted<JoinOp>(rounds_residual));
    return c;
  }
  using UnprovedChoices::choose;

 private:
  template <class Op>
  static void replace(Choices<Op>& c, const Backend<Op>* by) {
    for (Choice<Op>& choice : c.by_bucket) choice.backend = by;
  }
  Fault fault_;
};

constexpr Runner::Sizes kSizes{.rows = 64, .logit_rows = 4, .blocks = 64, .slots = 4, .context = 512};

// The model's ranks with these choices, proved.
LayerProof proof_of(Fault fault, const Runner::Sizes& sizes = kSizes, int ranks = 1, const char* name = "mettle-tiny",
                    Activation activation = Activation::kBf16) {
  seen = {};
  const ModelFolder folder = open_model_folder(std::string(METTLE_SOURCE_DIR "/models/") + name);
  const std::unique_ptr<WeightSource> source = open_weights(folder.path, folder.config);
  FaultyChoices choices(fault);
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<Place>> places;
  for (int rank = 0; rank < ranks; ++rank) {
    models.push_back(make_model(folder.config, *source, {.activation = activation, .rank = rank, .ranks = ranks}));
    places.push_back(host_place());
    models.back()->choose(choices);
    models.back()->load(*source, *places.back(), {});
  }
  Runner runner(std::move(models), std::move(places), 1);
  runner.ready(sizes);
  return prove_layers(runner, sizes, choices);
}

TEST(LayerProof, AHealthyModelPasses) {
  for (const int ranks : {1, 2}) {
    const LayerProof proof = proof_of(Fault::kNone, kSizes, ranks);
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_EQ(proof.steps, 5);
    EXPECT_EQ(proof.ops, 4 * (1 + 13 + 3 + 1));  // embed, joins, one layer of each kind, head
    EXPECT_GT(proof.comparisons, 100'000u);
    EXPECT_LT(proof.worst, 5) << proof.text();
    EXPECT_THAT(proof.text(), HasSubstr("72 ops in their places"));
  }
  const LayerProof f32 = proof_of(Fault::kNone, kSizes, 1, "mettle-tiny", Activation::kF32);
  EXPECT_TRUE(f32.verdict.ok()) << f32.text();
}

TEST(LayerProof, SmallSetUpsAreProvedAsFarAsTheyGo) {
  for (const Runner::Sizes& sizes :
       {Runner::Sizes{.rows = 1, .logit_rows = 1, .blocks = 1, .slots = 1, .context = 1},
        Runner::Sizes{.rows = 2, .logit_rows = 2, .blocks = 2, .slots = 2, .context = 16},
        Runner::Sizes{.rows = 512, .logit_rows = 1, .blocks = 4, .slots = 1, .context = 64}}) {
    const LayerProof proof = proof_of(Fault::kNone, sizes);
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_GT(proof.comparisons, 0u);
    EXPECT_FALSE(proof_of(Fault::kRoundsResidual, sizes).verdict.ok());
  }
}

TEST(LayerProof, FaultsOfTheChainAreConvicted) {
  const auto says = [](Fault fault) {
    const LayerProof proof = proof_of(fault);
    EXPECT_FALSE(proof.verdict.ok()) << static_cast<int>(fault);
    return proof.text();
  };
  EXPECT_THAT(says(Fault::kStaleSelection), HasSubstr("WRONG_SELECTION"));
  EXPECT_THAT(says(Fault::kTableInWorkspace), HasSubstr("WRONG_OUTPUT"));
  EXPECT_THAT(says(Fault::kScribblesOnResidual), HasSubstr("residual is not what was left there"));
  EXPECT_THAT(says(Fault::kScribblesOnCache), HasSubstr("cache rows or states that attention"));
  EXPECT_THAT(says(Fault::kRoundsResidual), HasSubstr("(planted/plain): residual[row "));
}

// What makes the proof of layers worth its time: alone each of them is proved.
template <class Op>
void expect_proved_alone(const typename Op::Problem& problem, const Backend<Op>& backend) {
  seen = {};
  ThreadTeam team(1);
  Trial<Op> trial(problem, {&team, 1, [] {}});
  ProofEntry entry;
  Examination examination(entry);
  try {
    trial.prove(backend, backend.tactics(problem, this_cpu()).front(), examination);
    examination.finish();
  } catch (const ProofFailure& f) {
    ADD_FAILURE() << f.verdict.sentence;
  }
  EXPECT_GT(entry.comparisons, 0u);
}

TEST(LayerProof, TheSameFaultsPassAlone) {
  expect_proved_alone(MoeProblem{.hidden = 64, .experts = 8, .top_k = 2, .width = 32},
                      *planted<MoeOp>(stale_selection));
  expect_proved_alone(MoeProblem{.hidden = 64, .experts = 8, .top_k = 2, .width = 32},
                      *planted<MoeOp>(scribbles_on_cache));
  expect_proved_alone(GdnProblem{.hidden = 64, .key_heads = 1, .value_heads = 2, .dk = 16, .dv = 16},
                      *planted<GdnOp>(table_in_workspace, sizeof kTable));
  expect_proved_alone(AttentionProblem{.hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 32, .rotary_dim = 16},
                      *planted<AttentionOp>(scribbles_on_residual));
}

}  // namespace
}  // namespace mettle

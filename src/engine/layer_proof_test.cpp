#include "engine/layer_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "engine/layer_beside.h"
#include "engine/test_support.h"
#include "models/registry.h"
#include "prove/trial.h"
#include "tensor/place.h"

namespace mettle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Backends that are right alone, by any proof of their op, and wrong in their place.
enum class Fault {
  kNone,
  kStaleSelection,
  kTableInWorkspace,
  kScribblesOnResidual,
  kScribblesOnCache,
  kRoundsResidual,
  kOneElement,
  kNotFinite,
  kForgetsStates,
};

struct Seen {  // addresses that an op of a chain has no business with
  float* residual = nullptr;
  uint16_t* k_cache = nullptr;
  const GdnWeights* gdn = nullptr;
  std::vector<const MoeWeights*> moe;
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

// In the fourth layer, one element of the third row: wrong by as much as a value of the row is large.
int layer_of(const MoeArgs& a) {
  if (std::find(seen.moe.begin(), seen.moe.end(), a.weights) == seen.moe.end()) seen.moe.push_back(a.weights);
  return static_cast<int>(std::find(seen.moe.begin(), seen.moe.end(), a.weights) - seen.moe.begin());
}
void one_element(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>().run(t, a, s);
  if (layer_of(a) != 3 || a.rows < 3) return;
  float* row = a.partial.as<float>() + 2 * int64_t{a.problem.hidden};
  double sum = 0;
  for (int c = 0; c < a.problem.hidden; ++c) sum += double{row[c]} * double{row[c]};
  row[5] += static_cast<float>(std::sqrt(sum / a.problem.hidden));
}
void not_finite(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>().run(t, a, s);
  if (layer_of(a) == 1 && a.rows == 1) a.partial.as<float>()[7] = std::numeric_limits<float>::infinity();
}

// A sequence's state is left as it was.
void forgets_states(const Tactic& t, const GdnArgs& a, Stream& s) {
  std::vector<uint8_t> before(a.state.as<uint8_t>(), a.state.as<uint8_t>() + a.state.bytes());
  right<GdnOp>().run(t, a, s);
  if (a.batch->rows == 1) std::memcpy(a.state.data, before.data(), before.size());
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
  explicit FaultyChoices(Fault fault, const char* healthy) : UnprovedChoices(healthy), fault_(fault) {}
  Choices<MoeOp> choose(const MoeProblem& p) override {
    Choices<MoeOp> c = UnprovedChoices::choose(p);
    if (fault_ == Fault::kStaleSelection) replace(c, planted<MoeOp>(stale_selection));
    if (fault_ == Fault::kScribblesOnCache) replace(c, planted<MoeOp>(scribbles_on_cache));
    if (fault_ == Fault::kOneElement) replace(c, planted<MoeOp>(one_element));
    if (fault_ == Fault::kNotFinite) replace(c, planted<MoeOp>(not_finite));
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
    if (fault_ == Fault::kForgetsStates) replace(c, planted<GdnOp>(forgets_states));
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

struct Arrangement {
  Runner::Sizes sizes = kSizes;
  int ranks = 1;
  Activation activation = Activation::kBf16;
  CacheFormat cache = CacheFormat::kActivation;
  bool beside = false;                // the references, as on a GPU
  const char* healthy = "reference";  // backends without a fault; "first": the fastest
};

// mettle-tiny with these choices, proved.
LayerProof proof_of(Fault fault, const Arrangement& with = {}) {
  seen = {};
  const ModelFolder folder = open_model_folder(METTLE_SOURCE_DIR "/models/mettle-tiny");
  const std::unique_ptr<WeightSource> source = open_weights(folder.path, folder.config);
  FaultyChoices choices(fault, with.healthy);
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<Place>> places;
  for (int rank = 0; rank < with.ranks; ++rank) {
    models.push_back(
        make_model(folder.config, *source,
                   {.activation = with.activation, .rank = rank, .ranks = with.ranks, .cache = with.cache}));
    places.push_back(host_place());
    models.back()->choose(choices);
    models.back()->load(*source, *places.back(), {});
  }
  Runner runner(std::move(models), std::move(places), 1);
  runner.ready(with.sizes);
  if (!with.beside) return prove_layers(runner, with.sizes, choices);
  const LayerProof proof = prove_layers_beside(runner, with.sizes, choices);
  EXPECT_LE(proof.bytes, layers_beside_bytes(*runner.ranks().front(), with.sizes, DeviceKind::kCpu));
  return proof;
}

TEST(LayerProof, AHealthyModelPasses) {
  for (const int ranks : {1, 2}) {
    const LayerProof proof = proof_of(Fault::kNone, {.ranks = ranks});
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_EQ(proof.steps, 5);
    EXPECT_EQ(proof.ops, 4 * (1 + 13 + 3 + 1));  // embed, joins, one layer of each kind, head
    EXPECT_GT(proof.comparisons, 100'000u);
    EXPECT_LT(proof.worst, 5) << proof.text();
    EXPECT_THAT(proof.text(), HasSubstr("72 ops in their places"));
  }
  const LayerProof f32 = proof_of(Fault::kNone, {.activation = Activation::kF32});
  EXPECT_TRUE(f32.verdict.ok()) << f32.text();
}

TEST(LayerProof, SmallSetUpsAreProvedAsFarAsTheyGo) {
  for (const Runner::Sizes& sizes :
       {Runner::Sizes{.rows = 1, .logit_rows = 1, .blocks = 1, .slots = 1, .context = 1},
        Runner::Sizes{.rows = 2, .logit_rows = 2, .blocks = 2, .slots = 2, .context = 16},
        Runner::Sizes{.rows = 512, .logit_rows = 1, .blocks = 4, .slots = 1, .context = 64}}) {
    const LayerProof proof = proof_of(Fault::kNone, {.sizes = sizes});
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_GT(proof.comparisons, 0u);
    EXPECT_FALSE(proof_of(Fault::kRoundsResidual, {.sizes = sizes}).verdict.ok());
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

// --- beside the references: what a GPU's layers are held against, here on a CPU ---

TEST(LayerBeside, AHealthyModelPasses) {
  const Runner::Sizes large{.rows = 160, .logit_rows = 4, .blocks = 80, .slots = 4, .context = 512};
  for (const Arrangement& with :
       {Arrangement{.beside = true}, Arrangement{.beside = true, .healthy = "first"},
        Arrangement{.activation = Activation::kF32, .beside = true, .healthy = "first"},
        Arrangement{.sizes = large, .cache = CacheFormat::kE4M3, .beside = true, .healthy = "first"}}) {
    const LayerProof proof = proof_of(Fault::kNone, with);
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_EQ(proof.steps, 5);
    EXPECT_EQ(proof.ops, 5 * (1 + 13 + 6 + 6 + 1)) << "embed, joins, mixers, moe and head of every layer";
    EXPECT_GT(proof.comparisons, 1'000'000u);
    EXPECT_LT(proof.worst, 0.25) << proof.text();
    EXPECT_EQ(proof.worst > 0, std::string(with.healthy) == "first") << "the reference beside itself has the same bits";
    EXPECT_THAT(proof.text(), HasSubstr("135 ops in their places beside their references"));
    EXPECT_LE(proof.rerouted, proof.routed / 100);
  }
}

TEST(LayerBeside, SmallSetUpsAreProvedAsFarAsTheyGo) {
  for (const Runner::Sizes& sizes :
       {Runner::Sizes{.rows = 1, .logit_rows = 1, .blocks = 1, .slots = 1, .context = 1},
        Runner::Sizes{.rows = 2, .logit_rows = 2, .blocks = 2, .slots = 2, .context = 16},
        Runner::Sizes{.rows = 512, .logit_rows = 1, .blocks = 4, .slots = 1, .context = 64}}) {
    const LayerProof proof = proof_of(Fault::kNone, {.sizes = sizes, .beside = true});
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_GT(proof.comparisons, 0u);
    EXPECT_FALSE(proof_of(Fault::kRoundsResidual, {.sizes = sizes, .beside = true}).verdict.ok());
  }
}

TEST(LayerBeside, FaultsOfTheChainAreConvictedWithTheirPlace) {
  const auto says = [](Fault fault) {
    const LayerProof proof = proof_of(fault, {.beside = true});
    EXPECT_FALSE(proof.verdict.ok()) << static_cast<int>(fault);
    return proof.text();
  };
  EXPECT_THAT(says(Fault::kStaleSelection),
              AllOf(HasSubstr("WRONG_SELECTION"), HasSubstr("layer 1 moe (planted/"), HasSubstr("selection[row ")));
  EXPECT_THAT(says(Fault::kTableInWorkspace), AllOf(HasSubstr("WRONG_OUTPUT"), HasSubstr("layer 1 gdn (planted/")));
  EXPECT_THAT(says(Fault::kScribblesOnResidual),
              AllOf(HasSubstr("OVERRUN"), HasSubstr("layer 2 join"), HasSubstr("residual is not what"),
                    HasSubstr("attention (planted/plain) ran last")));
  EXPECT_THAT(says(Fault::kScribblesOnCache), AllOf(HasSubstr("OVERRUN"), HasSubstr("a cache is not what layer ")));
  EXPECT_THAT(says(Fault::kRoundsResidual),
              AllOf(HasSubstr("layer 0 join (planted/plain)"), HasSubstr("residual[row ")));
  EXPECT_THAT(says(Fault::kOneElement), AllOf(HasSubstr("step 0 of 22 rows"), HasSubstr("layer 3 moe (planted/plain)"),
                                              HasSubstr("partial[row 2, column 5]"), HasSubstr("WRONG_OUTPUT")));
  EXPECT_THAT(says(Fault::kNotFinite), AllOf(HasSubstr("NOT_FINITE"), HasSubstr("step 3 of 1 rows"),
                                             HasSubstr("layer 1 moe"), HasSubstr("partial[row 0, column 7]")));
  EXPECT_THAT(says(Fault::kForgetsStates), AllOf(HasSubstr("WRONG_OUTPUT"), HasSubstr("step 3 of 1 rows"),
                                                 HasSubstr("layer 0 gdn (planted/plain)"), HasSubstr("state[row ")));
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

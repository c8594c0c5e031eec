// One thing wrong at a time, in what serves or between two ops: each rule of LayerBeside is the only one that sees it.
#include "engine/layer_beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "engine/layer_steps.h"
#include "engine/test_support.h"
#include "engine/watching_choices.h"
#include "models/registry.h"
#include "ops/case_weights.h"
#include "prove/test_problems.h"
#include "prove/trial.h"
#include "tensor/place.h"

namespace mettle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What happens when the choice of an op is asked for, before its inputs are looked at, and behind its work. Both know
// the addresses of the steps before alone.
template <class Op>
struct Hooks {
  static inline std::function<void()> ahead;
  static inline std::function<void(const typename Op::Args&)> behind;
  static void clear() { ahead = nullptr, behind = nullptr; }
};

template <class Op>
const Backend<Op>* planted() {
  static const Backend<Op> backend = [] {
    Backend<Op> b = reference_of<Op>();
    b.name = "planted";
    b.run = [](const Tactic& t, const typename Op::Args& a, Stream& s) {
      reference_of<Op>().run(t, a, s);
      if (Hooks<Op>::behind) Hooks<Op>::behind(a);
    };
    return b;
  }();
  return &backend;
}

class PlantedChoices : public testing::UnprovedChoices {
 public:
  Choices<EmbedOp> choose(const EmbedProblem& p) override { return planted_for<EmbedOp>(p); }
  Choices<JoinOp> choose(const JoinProblem& p) override { return planted_for<JoinOp>(p); }
  Choices<LinearOp> choose(const LinearProblem& p) override { return planted_for<LinearOp>(p); }
  Choices<MoeOp> choose(const MoeProblem& p) override { return planted_for<MoeOp>(p); }
  Choices<AttentionOp> choose(const AttentionProblem& p) override { return planted_for<AttentionOp>(p); }
  Choices<GdnOp> choose(const GdnProblem& p) override { return planted_for<GdnOp>(p); }
  using UnprovedChoices::choose;

 private:
  template <class Op>
  Choices<Op> planted_for(const typename Op::Problem& problem) {
    if (Hooks<Op>::ahead) Hooks<Op>::ahead();
    Choices<Op> c = UnprovedChoices::choose(problem);
    for (Choice<Op>& choice : c.by_bucket) choice.backend = planted<Op>();
    return c;
  }
};

// mettle-tiny, ready: layers 2 and 5 have attention, the others gdn.
struct Tiny {
  static constexpr int kLayers = 6;
  // So many blocks that no cache is as large as a state.
  Runner::Sizes sizes{.rows = 64, .logit_rows = 4, .blocks = 65, .slots = 4, .context = 512};
  PlantedChoices choices;
  std::unique_ptr<Runner> runner;

  explicit Tiny(std::unique_ptr<Place> place = host_place()) {
    const ModelFolder folder = open_model_folder(METTLE_SOURCE_DIR "/models/mettle-tiny");
    const std::unique_ptr<WeightSource> source = open_weights(folder.path, folder.config);
    std::vector<std::unique_ptr<Model>> models;
    models.push_back(make_model(folder.config, *source, {}));
    models.back()->choose(choices);
    models.back()->load(*source, *place, {});
    std::vector<std::unique_ptr<Place>> places;
    places.push_back(std::move(place));
    runner = std::make_unique<Runner>(std::move(models), std::move(places), 1);
    runner->ready(sizes);
  }
  LayerProof prove() { return prove_layers_beside(*runner, sizes, choices); }
};

// The lowest bit of one value, once.
struct Flip {
  static inline uint8_t* at = nullptr;
  static inline bool done = false;
  static void clear() { at = nullptr, done = false; }
  static void now() {
    if (at != nullptr && !done) *at ^= 1, done = true;
  }
  static void keep(const TensorView& t, int64_t row = 0) {
    at = t.as<uint8_t>() + t.bytes() / static_cast<size_t>(t.shape[0]) * static_cast<size_t>(row);
  }
  static void keep_first(const TensorView& t) {
    if (at == nullptr) keep(t);
  }
};

class LayerBesideRules : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    Hooks<EmbedOp>::clear(), Hooks<JoinOp>::clear(), Hooks<LinearOp>::clear();
    Hooks<MoeOp>::clear(), Hooks<AttentionOp>::clear(), Hooks<GdnOp>::clear();
    Flip::clear();
  }
  static std::string refusal() {
    const LayerProof proof = Tiny().prove();
    EXPECT_FALSE(proof.verdict.ok()) << proof.text();
    return proof.text();
  }
};

// All finite values of a tensor times `factor`: of its first dimension, those from `first` on.
void scale(const TensorView& t, double factor, int64_t first = 0) {
  const int64_t count = t.shape.elements(), of_row = count / t.shape[0];
  for (int64_t i = first * of_row; i < count; ++i) {
    const float x = t.dtype == DType::kF32 ? t.as<float>()[i] : bf16_to_float(t.as<uint16_t>()[i]);
    const auto scaled = static_cast<float>(double{x} * factor);
    if (!std::isfinite(x)) continue;
    if (t.dtype == DType::kF32) {
      t.as<float>()[i] = scaled;
    } else {
      t.as<uint16_t>()[i] = float_to_bf16(scaled);
    }
  }
}

// A tenth off is less than an element may be where inner roundings are to bf16: only the row's norm tells.
TEST_F(LayerBesideRules, EachOutputHasABoundOfItsRows) {
  const auto says = [](const char* op, const char* row) {
    EXPECT_THAT(refusal(), AllOf(HasSubstr("WRONG_OUTPUT: step 0 of 22 rows, "), HasSubstr(op),
                                 HasSubstr("the row of " + std::string(row) + "[row ")));
    clear();
  };
  constexpr double kFactor = 1.1;
  Hooks<EmbedOp>::behind = [](const EmbedArgs& a) { scale(a.residual, 1 + 0x1p-20); };
  says(", embed (planted/plain): ", "residual");
  Hooks<JoinOp>::behind = [](const JoinArgs& a) { scale(a.residual, 1 + 0x1p-16); };
  says(", layer 0 join (planted/plain): ", "residual");
  Hooks<JoinOp>::behind = [](const JoinArgs& a) { scale(a.x, kFactor); };
  says(", layer 0 join (planted/plain): ", "x");
  Hooks<LinearOp>::behind = [](const LinearArgs& a) { scale(a.y, 1 + 0x1p-8); };
  says(", linear (planted/plain): ", "logits");
  Hooks<MoeOp>::behind = [](const MoeArgs& a) {
    for (int i = 0; i < a.rows * a.problem.top_k; ++i) a.selection.weights[i] *= 1 + 0x1p-8f;
  };
  says(", layer 0 moe (planted/plain): ", "selection.weights");
  Hooks<MoeOp>::behind = [](const MoeArgs& a) { scale(a.partial, kFactor); };
  says(", layer 0 moe (planted/plain): ", "partial");
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { scale(a.partial, kFactor); };
  says(", layer 2 attention (planted/plain): ", "partial");
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { scale(a.k_cache, kFactor); };
  says(", layer 2 attention (planted/plain): ", "k");
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { scale(a.v_cache, kFactor); };
  says(", layer 2 attention (planted/plain): ", "v");
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { scale(a.partial, kFactor); };
  says(", layer 0 gdn (planted/plain): ", "partial");
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { scale(a.state, 1 + 0x1p-6); };
  says(", layer 0 gdn (planted/plain): ", "state");
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { scale(a.conv_state, 1 + 0x1p-8); };
  says(", layer 0 gdn (planted/plain): ", "conv_state");
}

// What two orders of summation may differ by is no refusal.
TEST_F(LayerBesideRules, ADifferenceOfARoundingIsAllowed) {
  Hooks<MoeOp>::behind = [](const MoeArgs& a) { scale(a.partial, 1 + 0x1p-8); };
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { scale(a.partial, 1 + 0x1p-7); };
  const LayerProof proof = Tiny().prove();
  EXPECT_TRUE(proof.verdict.ok()) << proof.text();
  EXPECT_NEAR(proof.worst, 0.25, 0.01);
}

// The last rows alone: of the last sequence, of the last block and slot that a step may write.
TEST_F(LayerBesideRules, EveryRowIsCompared) {
  Hooks<MoeOp>::behind = [](const MoeArgs& a) { scale(a.partial, 1.1, a.rows - 1); };
  EXPECT_THAT(refusal(), HasSubstr("the row of partial[row 21, "));
  clear();
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { scale(a.v_cache, 1.1, 1); };
  EXPECT_THAT(refusal(), HasSubstr("the row of v[row "));
  clear();
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { scale(a.state, 1.1, 1); };
  EXPECT_THAT(refusal(), HasSubstr("the row of state[row "));
}

// The element of a row that is smallest, off by `sizes` of its own and the row's root mean square.
template <class T>
int64_t move_smallest(T* row, int64_t cols, double sizes) {
  const auto at = std::min_element(row, row + cols, [](T a, T b) { return std::fabs(a) < std::fabs(b); });
  double sum = 0;
  for (int64_t c = 0; c < cols; ++c) sum += double{row[c]} * double{row[c]};
  *at += static_cast<T>(sizes * (std::fabs(*at) + std::sqrt(sum / static_cast<double>(cols))));
  return at - row;
}

// So little of a row's norm that its bound does not tell.
TEST_F(LayerBesideRules, EachOutputHasABoundOfItsElements) {
  static std::vector<int64_t> columns;  // of each call; the first is refused
  const auto says = [](const std::string& output) {
    const std::string refused = refusal();
    ASSERT_FALSE(columns.empty());
    EXPECT_THAT(refused, AllOf(HasSubstr(output + "[row 0, column " + std::to_string(columns.front()) + "]"),
                               HasSubstr(" of its own and the row's size from the reference")));
    clear();
    columns.clear();
  };
  Hooks<LinearOp>::behind = [](const LinearArgs& a) {
    columns.push_back(move_smallest(a.y.as<float>(), a.problem.out, 0.03));
  };
  says("linear (planted/plain): logits");
  Hooks<MoeOp>::behind = [](const MoeArgs& a) {
    columns.push_back(move_smallest(a.partial.as<float>(), a.problem.hidden, 0.2));
  };
  says("layer 0 moe (planted/plain): partial");
}

// --- other experts ---

// In the first `rows` rows of the first step's first layer, experts that were not chosen, and what they would add.
std::function<void(const MoeArgs&)> other_experts(int rows) {
  return [rows, done = false](const MoeArgs& a) mutable {
    if (done) return;
    done = true;
    const int top_k = a.problem.top_k;
    for (int r = 0; r < rows; ++r) {
      int32_t* ids = a.selection.ids + r * top_k;
      int32_t other = 0;
      while (std::find(ids, ids + top_k, other) != ids + top_k) ++other;
      ids[top_k - 1] = other;
      a.selection.weights[r * top_k] *= 1.5f;
      for (int c = 0; c < a.problem.hidden; ++c) a.partial.as<float>()[r * a.problem.hidden + c] *= 3;
    }
  };
}

TEST_F(LayerBesideRules, RowsOfOtherExpertsAreNotComparedAndFew) {
  for (const int rows : {1, 2}) {
    Hooks<MoeOp>::behind = other_experts(rows);
    const LayerProof proof = Tiny().prove();
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_EQ(proof.rerouted, static_cast<uint64_t>(rows));
    EXPECT_GT(proof.routed, 600u);  // all others of five steps, six layers
    EXPECT_EQ(proof.worst, 0) << "the rows beside them are the reference's";
  }
  Hooks<MoeOp>::behind = other_experts(3);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("WRONG_SELECTION: step 0 of 22 rows, layer 0 moe (planted/plain): selection[row 0]"),
                    HasSubstr("have 3 of 22 rows, need at most 1 in 100")));
}

// --- between the ops ---

// The lowest bit of a value changes after the op that wrote it and before the op that reads it.
TEST_F(LayerBesideRules, WhatAnOpLeftIsWhatTheNextFinds) {
  const auto says = [](const char* found) {
    EXPECT_THAT(refusal(), AllOf(HasSubstr("OVERRUN: step "), HasSubstr(found)));
    clear();
  };
  Hooks<EmbedOp>::behind = [](const EmbedArgs& a) { Flip::keep(a.residual); };
  Hooks<JoinOp>::ahead = Flip::now;
  says("layer 0 join (planted/plain): residual is not what embed (planted/plain) left there: row 0 of 22 changed");

  Hooks<JoinOp>::behind = [](const JoinArgs& a) { Flip::keep(a.residual); };
  Hooks<JoinOp>::ahead = Flip::now;
  says("layer 0 join (planted/plain): residual is not what layer 0 join (planted/plain) left there");

  Hooks<MoeOp>::behind = [](const MoeArgs& a) { Flip::keep(a.partial); };
  Hooks<JoinOp>::ahead = Flip::now;
  says("layer 1 join (planted/plain): partial is not what layer 0 moe (planted/plain) left there");

  Hooks<GdnOp>::behind = [](const GdnArgs& a) { Flip::keep(a.partial); };
  Hooks<JoinOp>::ahead = Flip::now;
  says("layer 0 join (planted/plain): partial is not what layer 0 gdn (planted/plain) left there");

  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { Flip::keep(a.partial); };
  Hooks<JoinOp>::ahead = Flip::now;
  says("layer 2 join (planted/plain): partial is not what layer 2 attention (planted/plain) left there");

  Hooks<JoinOp>::behind = [](const JoinArgs& a) { Flip::keep(a.x); };
  Hooks<MoeOp>::ahead = Flip::now;
  says("layer 0 moe (planted/plain): x is not what layer 0 join (planted/plain) left there: row 0 of 22 changed");

  Hooks<JoinOp>::behind = [](const JoinArgs& a) { Flip::keep(a.x); };
  Hooks<GdnOp>::ahead = Flip::now;
  says("layer 0 gdn (planted/plain): x is not what layer 0 join (planted/plain) left there");

  Hooks<JoinOp>::behind = [](const JoinArgs& a) { Flip::keep(a.x); };
  Hooks<AttentionOp>::ahead = Flip::now;
  says("layer 2 attention (planted/plain): x is not what layer 2 join (planted/plain) left there");

  // The rows whose logits are wanted were brought together somewhere else.
  Hooks<LinearOp>::behind = [](const LinearArgs& a) { Flip::keep(a.x); };
  Hooks<LinearOp>::ahead = Flip::now;
  says("linear (planted/plain): x of row 0, whose logits are wanted, is not what join behind the last layer");
}

// Not its first row alone.
TEST_F(LayerBesideRules, EveryRowIsWhatWasLeft) {
  Hooks<JoinOp>::behind = [](const JoinArgs& a) { Flip::keep(a.x, a.rows - 1); };
  Hooks<MoeOp>::ahead = Flip::now;
  EXPECT_THAT(refusal(), HasSubstr("x is not what layer 0 join (planted/plain) left there: row 21 of 22 changed"));
}

// Of the first layer of a kind, changed while the second is chosen.
TEST_F(LayerBesideRules, CachesAndStatesAreLeftAlone) {
  const auto says = [](const char* found) {
    EXPECT_THAT(refusal(), AllOf(HasSubstr("OVERRUN: step 1 of "), HasSubstr(found)));
    clear();
  };
  const char* of_attention =
      "layer 2 attention (planted/plain): a cache is not what layer 2 attention (planted/plain) ";
  Hooks<AttentionOp>::ahead = Flip::now;
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { Flip::keep_first(a.k_cache); };
  says(of_attention);
  Hooks<AttentionOp>::ahead = Flip::now;
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { Flip::keep_first(a.v_cache); };
  says(of_attention);
  const char* of_gdn = "layer 0 gdn (planted/plain): a cache is not what layer 0 gdn (planted/plain) ";
  Hooks<GdnOp>::ahead = Flip::now;
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { Flip::keep_first(a.state); };
  says(of_gdn);
  Hooks<GdnOp>::ahead = Flip::now;
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { Flip::keep_first(a.conv_state); };
  says(of_gdn);
}

// Nothing reads it any more.
TEST_F(LayerBesideRules, CachesAreLookedAtBehindTheLastStep) {
  static int steps = 0;
  steps = 0;
  Hooks<EmbedOp>::behind = [](const EmbedArgs&) { ++steps; };
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { Flip::keep(a.k_cache); };
  Hooks<LinearOp>::ahead = [] {
    if (steps == 5) Flip::now();
  };
  EXPECT_THAT(refusal(),
              HasSubstr("OVERRUN: step 4 of 64 rows, behind the last step: a cache is not what layer 5 attention"));
}

// Memory in which every third request for so many bytes gets what the first got, every fourth that of the second: a
// layer has two caches.
class SharedCaches : public Place {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  void* take(size_t bytes) override {
    std::vector<void*>& taken = taken_[bytes];
    taken.push_back(taken.size() < 2 ? inner_->take(bytes) : taken[taken.size() - 2]);
    return taken.back();
  }
  void* take_shared(size_t bytes) override { return inner_->take_shared(bytes); }
  void copy_in(void* to, const void* from, size_t bytes) override { inner_->copy_in(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { inner_->copy_out(to, from, bytes); }

 private:
  std::unique_ptr<Place> inner_ = host_place();
  std::map<size_t, std::vector<void*>> taken_;
};

TEST_F(LayerBesideRules, TwoLayersHaveTwoCaches) {
  const LayerProof proof = Tiny(std::make_unique<SharedCaches>()).prove();
  EXPECT_FALSE(proof.verdict.ok()) << proof.text();
  EXPECT_THAT(proof.text(), HasSubstr("OVERRUN: step 0 of 22 rows, layer 3 gdn (planted/plain): two layers use one "
                                      "cache: layer 0 gdn (planted/plain) left it"));
}

// --- around the steps ---

// What no step wrote is NaN, also times zero.
TEST_F(LayerBesideRules, RowsThatNoStepWroteAreNotRead) {
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) {
    const BatchSequence& s = a.batch->sequences[0];
    const int64_t position = s.ctx_len + s.q_len, size = a.k_cache.shape[1];
    const int64_t row = s.block_table[position / size] * size + position % size;
    const auto* k = a.k_cache.as<uint16_t>() + row * a.k_cache.shape[2] * a.k_cache.shape[3];
    a.partial.as<float>()[0] += 0 * bf16_to_float(*k);
  };
  EXPECT_THAT(refusal(), HasSubstr("NOT_FINITE: step 0 of 22 rows, layer 2 attention (planted/plain): partial[row 0, "
                                   "column 0] is not finite"));
}

TEST_F(LayerBesideRules, CachesHoldZerosBehindIt) {
  static std::vector<TensorView> caches;
  caches.clear();
  Hooks<AttentionOp>::behind = [](const AttentionArgs& a) { caches.insert(caches.end(), {a.k_cache, a.v_cache}); };
  Hooks<GdnOp>::behind = [](const GdnArgs& a) { caches.insert(caches.end(), {a.state, a.conv_state}); };
  Tiny tiny;
  ASSERT_TRUE(tiny.prove().verdict.ok());
  ASSERT_EQ(caches.size(), 5u * Tiny::kLayers * 2);
  for (const TensorView& cache : caches) {
    const auto* bytes = cache.as<uint8_t>();
    EXPECT_TRUE(std::all_of(bytes, bytes + cache.bytes(), [](uint8_t b) { return b == 0; }));
  }
}

// The first refusal stands, its step is run to its end, and no other.
TEST_F(LayerBesideRules, AStepGoesOnBehindARefusal) {
  static int joins = 0;
  joins = 0;
  Hooks<JoinOp>::behind = [](const JoinArgs& a) { ++joins, Flip::keep(a.residual); };
  Hooks<JoinOp>::ahead = Flip::now;
  Hooks<LinearOp>::behind = [](const LinearArgs& a) { scale(a.y, 2); };
  EXPECT_THAT(refusal(), HasSubstr("layer 0 join (planted/plain): residual is not what"));
  EXPECT_EQ(joins, 2 * Tiny::kLayers + 1);
}

// As a deterministic step on a GPU has them: five rows filled up to eight, rows 1 and 4 brought together in front of
// four.
TEST_F(LayerBesideRules, WantedRowsOfAPaddedStepAreBroughtTogether) {
  Tiny tiny;
  LayerBeside beside(*tiny.runner, tiny.choices, 0, 0, {});
  CaseRandom random(3);
  const LinearProblem head{.in = 256, .out = 16, .format = WeightFormat::kBf16};
  const PackedMatrix weight =
      case_weight(head.format, {head.out}, head.in, CaseFill::kTypical, random, 1).packed(Layout::kTile16);
  std::vector<float> residual(8 * 256), norm(256, 1), y(4 * 16);
  for (float& v : residual) v = static_cast<float>(random.normal());
  std::vector<uint16_t> x(8 * 256), wanted(4 * 256);
  Buffer ws(1 << 20);
  Stream stream = tiny.runner->stream();
  const auto step = [&](const std::array<int, 4>& rows) {
    beside.begin_step("step", 5, std::array<int32_t, 2>{1, 4}, 1);
    beside.run<JoinOp>({.problem = tiny_join(0),
                        .rows = 8,
                        .residual = {residual.data(), DType::kF32, {8, 256}},
                        .weight = norm.data(),
                        .x = {x.data(), DType::kBF16, {8, 256}}},
                       stream);
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(x.begin() + 256 * rows[i], 256, wanted.begin() + 256 * static_cast<int>(i));
    beside.run<LinearOp>({.problem = head,
                          .rows = 4,
                          .x = {wanted.data(), DType::kBF16, {4, 256}},
                          .weight = &weight,
                          .y = {y.data(), DType::kF32, {4, 16}},
                          .ws = {ws.data(), ws.size()}},
                         stream);
    return beside.verdict();
  };
  EXPECT_TRUE(step({1, 4, 0, 0}).ok()) << beside.verdict().sentence;
  EXPECT_EQ(step({1, 3, 0, 0}).code, VerdictCode::kOverrun);
}

// As many steps, from nothing, as the stride is long.
LayerProof steps_with_stride(Tiny& tiny, int stride) {
  LayerSteps steps(*tiny.runner, tiny.sizes, 64);
  LayerBeside beside(*tiny.runner, tiny.choices, steps.blocks(), steps.slots(), {});
  {
    const Watched<LayerBeside> watched(*tiny.runner->ranks().front(), tiny.choices, beside);
    for (int i = 0; i < stride; ++i)
      steps.run({{0, 3}}, [&](int rows, std::span<const int32_t> logit_rows) {
        beside.begin_step("step", rows, logit_rows, stride);
      });
  }
  LayerProof proof;
  beside.tell(proof);
  return proof;
}

TEST_F(LayerBesideRules, AStrideTakesEveryLayerInItsTurn) {
  static int layer = 0, wrong = 0;
  for (const int stride : {1, 2, 3}) {
    wrong = -1;
    Hooks<EmbedOp>::behind = [](const EmbedArgs&) { layer = 0; };
    Hooks<MoeOp>::behind = [](const MoeArgs& a) {
      if (layer++ == wrong) scale(a.partial, 2);
    };
    Tiny tiny;
    const LayerProof proof = steps_with_stride(tiny, stride);
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    // Joins, mixers and moe of every layer once; embed and head each time.
    EXPECT_EQ(proof.ops, 13 + 6 + 6 + 2 * stride);
    EXPECT_GT(proof.comparisons, 0u);
    for (wrong = 0; wrong < Tiny::kLayers; ++wrong) {
      EXPECT_THAT(steps_with_stride(tiny, stride).text(), HasSubstr("layer " + std::to_string(wrong) + " moe"))
          << "stride " << stride;
    }
  }
}

}  // namespace
}  // namespace mettle

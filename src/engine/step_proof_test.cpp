#include "engine/step_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "models/block.h"

namespace mettle {
namespace {

using ::testing::HasSubstr;

// A model whose logits are sums over a sequence's tokens, kept in a cache, with one fault of the chain.
enum class Fault { kNone, kStaleScratch, kBeyondContext, kStateOfAnother, kUnwrittenLogit, kNan, kNeighbours };

class SumModel : public Model {
 public:
  explicit SumModel(Fault fault) : fault_(fault) {
    info_.vocab = 8;
    list_ = {{.kind = CacheEntry::Kind::kPaged, .name = "tokens", .dtype = DType::kF32, .shape = {1}},
             {.kind = CacheEntry::Kind::kSlot, .name = "count", .dtype = DType::kF32, .shape = {1}}};
  }
  const ModelInfo& info() const override { return info_; }
  std::span<const CacheEntry> caches() const override { return list_; }
  std::vector<AnyProblem> problems() const override { return {}; }
  WeightBytes weight_bytes() const override { return {}; }
  void choose(ChoiceSource&) override {}
  size_t scratch_bytes(const StepLimits&) const override { return sizeof scratch_; }
  void load(WeightSource&, Place&, const std::function<void(int64_t)>&) override {}
  void ready(const StepLimits&, std::vector<TensorView> caches, Comm&) override { caches_ = std::move(caches); }
  std::span<uint8_t> scratch() override { return {reinterpret_cast<uint8_t*>(scratch_), sizeof scratch_}; }

  OpPlace place_of(int32_t, int, int) const override { return {}; }
  void forward(const Step& step, Stream&) override {
    rows_seen = std::max(rows_seen, step.batch.rows);
    for (size_t s = 0; s < step.batch.sequences.size(); ++s) {
      const BatchSequence& q = step.batch.sequences[s];
      const auto token = [&](int position) -> float& {
        return caches_[0].as<float>()[q.block_table[position / step.batch.block_size] * step.batch.block_size +
                                      position % step.batch.block_size];
      };
      float* counts = caches_[1].as<float>();
      const bool foreign = fault_ == Fault::kStateOfAnother && q.ctx_len == 0;
      float count = q.state_in < 0 && !foreign ? 0 : counts[foreign ? q.state_out : q.state_in];
      for (int r = 0; r < q.q_len; ++r) token(q.ctx_len + r) = static_cast<float>(step.ids[q.first_row + r]);
      counts[q.state_out] = count += static_cast<float>(q.q_len);
      const int length = q.ctx_len + q.q_len + (fault_ == Fault::kBeyondContext ? 1 : 0);
      if (fault_ != Fault::kStaleScratch) scratch_[s % 4] = 0;
      for (int p = 0; p < length; ++p) scratch_[s % 4] += token(p);
      float* logits = step.logits.as<float>() + s * 8;
      for (int v = 0; v < (fault_ == Fault::kUnwrittenLogit ? 7 : 8); ++v)
        logits[v] = fault_ == Fault::kNan ? NAN : scratch_[s % 4] + count * static_cast<float>(v);
      if (fault_ == Fault::kNeighbours) logits[3] += static_cast<float>(step.batch.sequences.size()) * 1e-3f;
    }
  }
  int rows_seen = 0;

 private:
  Fault fault_;
  ModelInfo info_;
  std::vector<CacheEntry> list_;
  std::vector<TensorView> caches_;
  float scratch_[4] = {};
};

StepProof proof_of(Fault fault,
                   Runner::Sizes sizes = {.rows = 64, .logit_rows = 8, .blocks = 64, .slots = 8, .context = 512},
                   int* rows_seen = nullptr) {
  std::vector<std::unique_ptr<Model>> models;
  models.push_back(std::make_unique<SumModel>(fault));
  auto* model = static_cast<SumModel*>(models.front().get());
  std::vector<std::unique_ptr<Place>> places;
  places.push_back(host_place());
  Runner runner(std::move(models), std::move(places), 1);
  runner.ready(sizes);
  const StepProof proof = prove_steps(runner, sizes);
  if (rows_seen != nullptr) *rows_seen = model->rows_seen;
  return proof;
}

TEST(StepProof, AHealthyModelPasses) {
  const StepProof proof = proof_of(Fault::kNone);
  EXPECT_TRUE(proof.verdict.ok()) << proof.text();
  EXPECT_EQ(proof.steps, 10);                           // three prompts, six of decode, one chunk
  EXPECT_EQ(proof.comparisons, 2u * 8 * (6 + 12 + 2));  // two passes against the third
  EXPECT_THAT(proof.text(), HasSubstr("10 steps, 3 passes, 320 logits equal bit for bit"));
}

TEST(StepProof, FaultsOfTheChainAreConvicted) {
  for (const Fault fault :
       {Fault::kStaleScratch, Fault::kBeyondContext, Fault::kStateOfAnother, Fault::kUnwrittenLogit}) {
    const StepProof proof = proof_of(fault);
    EXPECT_FALSE(proof.verdict.ok()) << static_cast<int>(fault);
    EXPECT_TRUE(proof.verdict.code == VerdictCode::kIncompleteWrite || proof.verdict.code == VerdictCode::kNotFinite);
    EXPECT_THAT(proof.text(), HasSubstr("step "));
  }
  EXPECT_EQ(proof_of(Fault::kNan).verdict.code, VerdictCode::kNotFinite);
}

// Sums that follow the size of a step are the same in every pass; only a deterministic engine may not have them.
TEST(StepProof, ADeterministicEnginesSequencesDoNotDependOnOthers) {
  Runner::Sizes sizes{.rows = 64, .logit_rows = 8, .blocks = 64, .slots = 8, .context = 512};
  EXPECT_TRUE(proof_of(Fault::kNeighbours, sizes).verdict.ok());
  sizes.deterministic = true;
  const StepProof healthy = proof_of(Fault::kNone, sizes), proof = proof_of(Fault::kNeighbours, sizes);
  EXPECT_TRUE(healthy.verdict.ok()) << healthy.text();
  EXPECT_EQ(healthy.alone, 3);
  EXPECT_EQ(healthy.comparisons, 2u * 8 * (6 + 12 + 2) + 3u * 8 * 5);  // a prompt and four of decode each
  EXPECT_THAT(healthy.text(), HasSubstr("3 sequences alone as among others"));
  EXPECT_EQ(proof.verdict.code, VerdictCode::kRowDependent) << proof.text();
  EXPECT_THAT(proof.text(), HasSubstr("a sequence alone and the same among others, step 0"));
}

TEST(StepProof, SmallSetUpsAreProvedAsFarAsTheyGo) {
  int rows = 0;
  for (const Runner::Sizes& sizes :
       {Runner::Sizes{.rows = 1, .logit_rows = 1, .blocks = 1, .slots = 1, .context = 4},
        Runner::Sizes{.rows = 2, .logit_rows = 2, .blocks = 2, .slots = 2, .context = 16},
        Runner::Sizes{.rows = 512, .logit_rows = 1, .blocks = 4, .slots = 1, .context = 64}}) {
    const StepProof proof = proof_of(Fault::kNone, sizes, &rows);
    EXPECT_TRUE(proof.verdict.ok()) << proof.text();
    EXPECT_GT(proof.comparisons, 0u);
    EXPECT_LE(rows, sizes.rows);
    EXPECT_FALSE(proof_of(Fault::kUnwrittenLogit, sizes).verdict.ok());
  }
}

}  // namespace
}  // namespace mettle

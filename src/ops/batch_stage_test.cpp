#include "ops/batch_stage.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/sample_stage.h"

namespace mettle {
namespace {

struct TwoSequences {
  std::vector<int32_t> first_blocks = {7, 3}, second_blocks = {5};
  std::vector<BatchSequence> sequences = {
      {.first_row = 0, .q_len = 3, .ctx_len = 15, .block_table = first_blocks.data(), .state_in = 2, .state_out = 1},
      {.first_row = 3, .q_len = 1, .ctx_len = 0, .block_table = second_blocks.data(), .state_in = -1, .state_out = 0}};
  std::vector<int32_t> ids = {11, 12, 13, 14}, logit_rows = {2, 3};
  Batch batch() const { return {.rows = 4, .block_size = 16, .sequences = sequences}; }
};

TEST(BatchStage, WritesEveryArrayAndMarksPadding) {
  const TwoSequences t;
  const auto place = host_place();
  BatchStage stage({.rows = 8, .sequences = 4, .logit_rows = 4, .blocks = 3}, *place);
  const DeviceBatch& d = stage.fill(t.batch(), t.ids.data(), t.logit_rows,
                                    {.rows = 6, .sequences = 3, .logit_rows = 3, .most_context = 1024});
  stage.upload(nullptr);
  EXPECT_EQ(std::vector<int32_t>(d.ids, d.ids + 6), (std::vector<int32_t>{11, 12, 13, 14, 0, 0}));
  EXPECT_EQ(std::vector<int32_t>(d.row_sequence, d.row_sequence + 6), (std::vector<int32_t>{0, 0, 0, 1, -1, -1}));
  EXPECT_EQ(std::vector<int32_t>(d.row_position, d.row_position + 4), (std::vector<int32_t>{15, 16, 17, 0}));
  EXPECT_EQ(std::vector<int32_t>(d.blocks, d.blocks + 3), (std::vector<int32_t>{7, 3, 5}));
  EXPECT_EQ(std::vector<int32_t>(d.logit_row, d.logit_row + 3), (std::vector<int32_t>{2, 3, 0}));
  EXPECT_EQ(d.rows, 6);
  EXPECT_EQ(d.sequences, 3);
  EXPECT_EQ(d.logit_rows, 3);
  EXPECT_EQ(d.most_q, 3);
  EXPECT_EQ(d.most_context, 1024);
  EXPECT_EQ(d.sequence[0].ctx_len, 15);
  EXPECT_EQ(d.sequence[0].state_in, 2);
  EXPECT_EQ(d.sequence[1].block_begin, 2);
  EXPECT_EQ(d.sequence[1].first_row, 3);
  EXPECT_EQ(d.sequence[2].q_len, 0);
  EXPECT_EQ(d.sequence[2].state_out, -1);
}

TEST(BatchStage, TakesIdsFromResults) {
  const TwoSequences t;
  const auto place = host_place();
  BatchStage stage({.rows = 8, .sequences = 4, .logit_rows = 4, .blocks = 3}, *place);
  const std::vector<SampleResult> results = {{.token = 70}, {.token = -1}, {.token = 72}, {.token = 73}};
  const std::vector<int32_t> rows_of = {3, 1, 0, 2};
  const DeviceBatch& d = stage.fill(t.batch(), rows_of.data(), t.logit_rows, {.rows = 6});
  stage.upload(nullptr);
  stage.take_ids(results.data(), 4, nullptr);
  EXPECT_EQ(std::vector<int32_t>(d.ids, d.ids + 6), (std::vector<int32_t>{73, 0, 70, 72, 0, 0}));
}

// What one step's copy has not read yet the next step's image does not change.
TEST(BatchStage, ImagesTakeTurns) {
  class Shared : public Place {
   public:
    DeviceKind kind() const override { return DeviceKind::kCpu; }
    void* take(size_t bytes) override { return inner->take(bytes); }
    void* take_shared(size_t bytes) override {
      images.push_back(static_cast<int32_t*>(inner->take_shared(bytes)));
      return images.back();
    }
    void copy_in(void* to, const void* from, size_t bytes) override { inner->copy_in(to, from, bytes); }
    void copy_out(void* to, const void* from, size_t bytes) override { inner->copy_out(to, from, bytes); }
    std::unique_ptr<Place> inner = host_place();
    std::vector<int32_t*> images;
  };
  const TwoSequences t;
  Shared place;
  BatchStage stage({.rows = 8, .sequences = 4, .logit_rows = 4, .blocks = 3}, place);
  ASSERT_EQ(place.images.size(), 2u);
  const std::vector<int32_t> others = {51, 52, 53, 54};
  stage.fill(t.batch(), t.ids.data(), t.logit_rows);
  stage.fill(t.batch(), others.data(), t.logit_rows);
  EXPECT_EQ(place.images[0][0] + place.images[1][0], 11 + 51);
}

TEST(BatchStage, PaddingMayStandForLongerSequences) {
  const TwoSequences t;
  const auto place = host_place();
  BatchStage stage({.rows = 8, .sequences = 4, .logit_rows = 4, .blocks = 3}, *place);
  EXPECT_EQ(stage.fill(t.batch(), t.ids.data(), t.logit_rows, {.rows = 8, .most_q = 8}).most_q, 8);
  EXPECT_EQ(stage.fill(t.batch(), t.ids.data(), t.logit_rows, {.rows = 8, .most_q = 2}).most_q, 3);
}

// A captured graph holds the pointers: they stay, whatever the next batch is.
TEST(BatchStage, ASmallerBatchLeavesNothingOfTheLastOneAndKeepsItsPlace) {
  const TwoSequences t;
  const auto place = host_place();
  BatchStage stage({.rows = 8, .sequences = 4, .logit_rows = 4, .blocks = 3}, *place);
  const DeviceBatch before = stage.fill(t.batch(), t.ids.data(), t.logit_rows);
  stage.upload(nullptr);
  const std::vector<BatchSequence> one = {
      {.first_row = 0, .q_len = 1, .ctx_len = 1, .block_table = t.second_blocks.data()}};
  const std::vector<int32_t> row = {0};
  const DeviceBatch& d = stage.fill({.rows = 1, .block_size = 16, .sequences = one}, t.ids.data(), row,
                                    {.rows = 4, .sequences = 2, .logit_rows = 2, .most_context = 64});
  stage.upload(nullptr);
  EXPECT_EQ(d.ids, before.ids);
  EXPECT_EQ(d.sequence, before.sequence);
  EXPECT_EQ(d.blocks, before.blocks);
  EXPECT_EQ(std::vector<int32_t>(d.row_sequence, d.row_sequence + 4), (std::vector<int32_t>{0, -1, -1, -1}));
  EXPECT_EQ(d.sequence[1].q_len, 0);
  EXPECT_EQ(d.most_q, 1);
  EXPECT_EQ(d.blocks[0], 5);
}

TEST(BatchStage, RefusesWhatItDoesNotHold) {
  const TwoSequences t;
  const auto place = host_place();
  BatchStage rows({.rows = 3, .sequences = 4, .logit_rows = 4, .blocks = 8}, *place);
  EXPECT_THROW(rows.fill(t.batch(), t.ids.data(), t.logit_rows), Error);
  BatchStage blocks({.rows = 8, .sequences = 4, .logit_rows = 4, .blocks = 2}, *place);
  EXPECT_THROW(blocks.fill(t.batch(), t.ids.data(), t.logit_rows), Error);
}

TEST(SampleStage, FlattensCountsAndBiasesAndGrows) {
  const std::vector<TokenCount> counts(3000, TokenCount{.id = 4, .in_output = 2, .in_prompt = true});
  const std::vector<TokenBias> biases = {{.id = 9, .bias = -1}, {.id = 10, .bias = 2}};
  const auto place = host_place();
  SampleStage stage(2, *place);  // room for 2,048 counts to begin with
  const std::vector<SampleRow> rows = {{.temperature = 0.5f, .top_k = 7, .counts = counts},
                                       {.random = 0.25, .top_logprobs = 3, .biases = biases}};
  const size_t before = place->bytes();
  const DeviceSample& d = stage.fill(rows);
  EXPECT_GE(place->bytes() - before, counts.size() * sizeof(TokenCount));
  EXPECT_EQ(d.rows[0].temperature, 0.5f);
  EXPECT_EQ(d.rows[0].top_k, 7);
  EXPECT_EQ(d.rows[0].counts, 3000);
  EXPECT_EQ(d.counts[2999].in_output, 2);
  EXPECT_EQ(d.rows[1].random, 0.25);
  EXPECT_EQ(d.rows[1].counts_begin, 3000);
  EXPECT_EQ(d.rows[1].counts, 0);
  EXPECT_EQ(d.rows[1].top_logprobs, 3);
  EXPECT_EQ(d.biases[d.rows[1].biases_begin + 1].id, 10);
}

}  // namespace
}  // namespace mettle

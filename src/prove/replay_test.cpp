#include "prove/replay.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mettle {
namespace {

// A batch of two sequences with caches, as a GPU's launch sees them; in host memory.
struct Fixture {
  AttentionProblem problem{.hidden = 4, .heads = 1, .kv_heads = 1, .head_dim = 4, .block_size = 2};
  std::vector<int32_t> blocks = {3, 1, 2, 0}, row_sequence = {0, 1, 1}, row_position = {3, 1, 2};
  std::vector<BatchSequence> host = {{0, 1, 3, blocks.data(), -1, -1}, {1, 2, 1, blocks.data() + 2, -1, -1}};
  std::vector<DeviceSequence> device = {{0, 1, 3, 0}, {1, 2, 1, 2}};
  DeviceBatch device_batch{.rows = 3, .sequences = 2};
  Batch batch{3, 2, host, &device_batch};
  std::vector<uint16_t> x = std::vector<uint16_t>(12), k = std::vector<uint16_t>(32), v = k;
  std::vector<float> partial = std::vector<float>(12, 7);
  AttentionWeights weights;
  AttentionArgs args;
  Fixture() {
    device_batch.row_sequence = row_sequence.data();
    device_batch.row_position = row_position.data();
    device_batch.sequence = device.data();
    std::iota(x.begin(), x.end(), uint16_t{1});
    args = {problem,
            &batch,
            {x.data(), DType::kBF16, {3, 4}},
            &weights,
            {k.data(), DType::kBF16, {4, 2, 1, 4}},
            {v.data(), DType::kBF16, {4, 2, 1, 4}},
            {partial.data(), DType::kF32, {3, 4}},
            {}};
  }
};

TEST(Replay, OthersAreOtherInputsAndPaddingAndTheOwnComeBack) {
  Fixture f;
  const std::vector<uint16_t> x = f.x;
  {
    Replay replay(f.args);
    f.partial[5] = 9;
    replay.keep();
    replay.put_others();
    EXPECT_EQ(f.partial[5], 7);
    EXPECT_EQ(f.x.front(), x.back());
    EXPECT_EQ(f.row_sequence, (std::vector<int32_t>{0, -1, -1}));
    EXPECT_EQ(f.row_position[0], 1);
    EXPECT_EQ(f.device[0].ctx_len, 1);
    EXPECT_EQ(f.device[1].q_len, 0);
    const AttentionArgs others = replay.others(f.args);
    EXPECT_EQ(others.batch->sequences[0].ctx_len, 1);
    EXPECT_EQ(others.batch->device, &f.device_batch);
    replay.put_own();
    EXPECT_EQ(f.x, x);
    EXPECT_EQ(f.device[0].ctx_len, 3);
    EXPECT_EQ(f.device[1].q_len, 2);
    replay.put_others();
  }
  EXPECT_EQ(f.x, x);
  EXPECT_EQ(f.row_sequence, (std::vector<int32_t>{0, 1, 1}));
}

TEST(Replay, WhatAReplayWritesMustBeWhatTheLaunchWrote) {
  Fixture f;
  Replay replay(f.args);
  f.partial[5] = 9;
  replay.keep();
  replay.put_own();
  EXPECT_EQ(replay.check_own().code, VerdictCode::kNondeterministic);
  f.partial[5] = 9;
  EXPECT_TRUE(replay.check_own().ok());
}

TEST(Replay, PaddingMayWriteNoCache) {
  Fixture f;
  Replay replay(f.args);
  replay.keep();
  replay.put_others();
  // Sequence 0 has position 1 now: block 3, second place.
  f.k[7 * 4] = 5;
  EXPECT_TRUE(replay.check_others().ok());
  f.v[2 * 2 * 4] = 5;  // block 2 belongs to what is padding now
  EXPECT_EQ(replay.check_others().code, VerdictCode::kOverrun);
}

TEST(Replay, RowsOfSampleAndIdsOfEmbedAreOthersOnTheHostToo) {
  std::vector<int32_t> ids = {5, 6};
  std::vector<float> residual(4);
  EmbedArgs embed{{8, 2}, 2, ids.data(), {}, {residual.data(), DType::kF32, {2, 2}}, ids.data()};
  Replay replay(embed);
  replay.put_others();
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(replay.others(embed).ids[1], 0);
  std::vector<float> logits = {1, 2};
  std::vector<SampleRow> rows(1, {.temperature = 0.5f});
  std::vector<DeviceSampleRow> device_rows(1, {.temperature = 0.5f});
  std::vector<SampleResult> results(1);
  const DeviceSample device{device_rows.data()};
  const SampleArgs sample{{2, 2}, 1, {logits.data(), DType::kF32, {1, 2}}, rows, results, {}, &device};
  Replay sampled(sample);
  sampled.put_others();
  EXPECT_EQ(device_rows[0].temperature, 0);
  EXPECT_EQ(sampled.others(sample).params[0].temperature, 0);
  EXPECT_EQ(logits[0], 2);
  sampled.put_own();
  EXPECT_EQ(device_rows[0].temperature, 0.5f);
}

}  // namespace
}  // namespace mettle

// The scheduler without a model.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "engine/sampler.h"

namespace mettle {
namespace {

std::unique_ptr<Sequence> sequence(uint64_t id, int prompt, int most_new) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->tokens.assign(static_cast<size_t>(prompt), 1);
  s->prompt_size = prompt;
  s->most_new = most_new;
  return s;
}

using Rows = std::vector<std::pair<uint64_t, int>>;

Rows step(Scheduler& scheduler) {
  Rows rows;
  for (const ScheduledRows& r : scheduler.schedule()) {
    rows.emplace_back(r.sequence->id, r.rows);
    r.sequence->computed += r.rows;
    if (r.sequence->left() == 0) r.sequence->tokens.push_back(2);
  }
  return rows;
}

TEST(Scheduler, DecodeRowsFirstThenPrefillInOrderOfArrival) {
  Scheduler s({.max_running = 4, .step_tokens = 10, .blocks = 100, .max_waiting = 10});
  s.add(sequence(1, 6, 9));
  s.add(sequence(2, 15, 9));
  s.add(sequence(3, 3, 9));
  EXPECT_EQ(step(s), (Rows{{1, 6}, {2, 4}}));
  EXPECT_EQ(step(s), (Rows{{1, 1}, {2, 9}}));
  EXPECT_EQ(step(s), (Rows{{1, 1}, {2, 2}, {3, 3}}));
  EXPECT_EQ(step(s), (Rows{{1, 1}, {2, 1}, {3, 1}}));
}

TEST(Scheduler, NothingToDoIsAnEmptyStep) {
  Scheduler s({.max_running = 4, .step_tokens = 10, .blocks = 4, .max_waiting = 10});
  EXPECT_TRUE(step(s).empty());
  EXPECT_EQ(s.remove(7), nullptr);
}

TEST(Scheduler, AdmitsByBlocksAndSlots) {
  Scheduler s({.max_running = 8,
               .step_tokens = 100,
               .block_size = 4,
               .needs_slots = true,
               .blocks = 6,
               .slots = 2,
               .max_waiting = 10});
  s.add(sequence(1, 8, 9));  // 2 blocks
  s.add(sequence(2, 8, 9));  // 2 blocks, one in reserve for the first: fits
  s.add(sequence(3, 1, 9));  // no slot
  EXPECT_EQ(step(s), (Rows{{1, 8}, {2, 8}}));
  EXPECT_EQ(s.waiting(), 1);
  EXPECT_EQ(s.slots().used(), 2);
  s.remove(1);
  EXPECT_EQ(step(s), (Rows{{2, 1}, {3, 1}}));
}

TEST(Scheduler, PreemptsTheYoungestAndStartsItAgain) {
  Scheduler s({.max_running = 8, .step_tokens = 100, .block_size = 4, .blocks = 5, .max_waiting = 10});
  s.add(sequence(1, 7, 20));
  s.add(sequence(2, 4, 20));
  EXPECT_EQ(step(s), (Rows{{1, 7}, {2, 4}}));
  for (int i = 0; i < 20 && s.preemptions() == 0; ++i) step(s);
  EXPECT_EQ(s.preemptions(), 1u);
  EXPECT_EQ(s.running(), 1);
  EXPECT_EQ(s.waiting(), 1);
  const auto oldest = s.remove(1);
  ASSERT_NE(oldest, nullptr);
  const Rows again = step(s);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].first, 2u);
  EXPECT_GT(again[0].second, 4);  // its prompt and what it had generated
  s.remove(2);
  EXPECT_EQ(s.blocks().used(), 0);
}

TEST(Scheduler, DeterministicChunksEndOnTheGrid) {
  Scheduler s({.max_running = 2, .step_tokens = 150, .deterministic = true, .blocks = 100, .max_waiting = 10});
  s.add(sequence(1, 200, 9));
  s.add(sequence(2, 70, 9));
  EXPECT_EQ(step(s), (Rows{{1, 128}}));  // 22 rows left hold no chunk of the second
  EXPECT_EQ(step(s), (Rows{{1, 72}, {2, 70}}));
  EXPECT_EQ(step(s), (Rows{{1, 1}, {2, 1}}));
}

// Steps of one kind only; a chunk is whole or waits; rows of one sequence follow from its lengths, also when it starts
// again.
TEST(Scheduler, WholeChunksAreKeptApart) {
  Scheduler s({.max_running = 3,
               .step_tokens = 100,
               .block_size = 4,
               .deterministic = true,
               .whole_chunk = 100,
               .blocks = 100,
               .max_waiting = 10});
  s.add(sequence(1, 101, 9));
  s.add(sequence(2, 60, 9));
  s.add(sequence(3, 50, 9));
  EXPECT_EQ(step(s), (Rows{{1, 100}}));
  EXPECT_EQ(step(s), (Rows{{1, 1}}));   // the rest of its prompt is a row like those that are decoded
  EXPECT_EQ(step(s), (Rows{{2, 60}}));  // 40 left do not hold the third
  EXPECT_EQ(step(s), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(step(s), (Rows{{3, 50}}));
  EXPECT_EQ(step(s), (Rows{{1, 1}, {2, 1}, {3, 1}}));
}

TEST(Scheduler, WholeChunksAreRecomputedAsTheyWere) {
  Scheduler s({.max_running = 8,
               .step_tokens = 100,
               .block_size = 4,
               .deterministic = true,
               .whole_chunk = 100,
               .blocks = 5,
               .max_waiting = 10});
  s.add(sequence(1, 7, 20));
  s.add(sequence(2, 4, 20));
  std::vector<Rows> steps;
  while (s.preemptions() == 0 && steps.size() < 20) steps.push_back(step(s));
  ASSERT_EQ(s.preemptions(), 1u);
  EXPECT_EQ(steps[0], (Rows{{1, 7}, {2, 4}}));
  EXPECT_EQ(steps[1], (Rows{{1, 1}, {2, 1}}));
  const auto oldest = s.remove(1);
  const int generated = static_cast<int>(steps.size()) - 1;
  EXPECT_EQ(step(s), (Rows{{2, 4}}));  // its prompt, then one by one what it had generated and the next
  for (int i = 0; i < generated; ++i) {
    EXPECT_EQ(step(s), (Rows{{2, 1}})) << i;
  }
}

// Whatever comes, in any pool that holds one context: all finish, nothing is lost, budgets hold.
TEST(Scheduler, RandomLoadsFinish) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const int context = 40, block = 1 + static_cast<int>(random() % 8);
    SchedulerOptions options{.max_running = 1 + static_cast<int>(random() % 6),
                             .step_tokens = 1 + static_cast<int>(random() % 30),
                             .block_size = block,
                             .needs_slots = random() % 2 == 0,
                             .max_waiting = 100};
    if (round % 4 == 3) options.step_tokens += options.max_running + kChunkGrid, options.deterministic = true;
    if (round % 8 == 7) options.whole_chunk = options.step_tokens;
    options.blocks = (context + block - 1) / block + static_cast<int>(random() % 10);
    options.slots = options.max_running;
    Scheduler s(options);
    uint64_t added = 0, finished = 0;
    for (int steps = 0; finished < 30; ++steps) {
      ASSERT_LT(steps, 20000) << "round " << round;
      if (added < 30 && random() % 3 == 0) {
        const int prompt = 1 + static_cast<int>(random() % (context - 1));
        s.add(sequence(++added, prompt, 1 + static_cast<int>(random() % static_cast<unsigned>(context - prompt))));
      }
      int rows = 0;
      std::vector<uint64_t> done;
      std::map<int32_t, int> owners;
      const auto scheduled = s.schedule();
      for (const ScheduledRows& r : scheduled) {
        ASSERT_GE(r.rows, 1);
        ASSERT_LE(r.sequence->computed + r.rows, std::ssize(r.sequence->blocks) * block);
        for (const int32_t b : r.sequence->blocks) ASSERT_EQ(++owners[b], 1) << "a block of two sequences";
        rows += r.rows;
        r.sequence->computed += r.rows;
        if (r.sequence->left() > 0) continue;
        r.sequence->tokens.push_back(3);
        if (r.sequence->generated() == r.sequence->most_new) done.push_back(r.sequence->id);
      }
      ASSERT_LE(rows, options.step_tokens);
      ASSERT_LE(std::ssize(scheduled), options.max_running);
      for (const uint64_t id : done) s.remove(id), ++finished;
    }
    EXPECT_EQ(s.blocks().used(), 0);
    EXPECT_EQ(s.slots().used(), 0);
  }
}

TEST(Sampler, RandomNumbersAreUniformAndIndependentOfOrder) {
  double sum = 0, least = 1, most = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const double r = random_number(42, i);
    ASSERT_TRUE(r >= 0 && r < 1);
    sum += r;
    least = std::min(least, r);
    most = std::max(most, r);
  }
  EXPECT_NEAR(sum / 20000, 0.5, 0.01);
  EXPECT_LT(least, 0.001);
  EXPECT_GT(most, 0.999);
  EXPECT_EQ(random_number(42, 7), random_number(42, 7));
  EXPECT_NE(random_number(42, 7), random_number(43, 7));
  EXPECT_NE(random_number(42, 7), random_number(42, 8));
}

TEST(Sampler, BiasesStopsAndCounts) {
  Sequence s;
  s.tokens = {5, 9, 5};
  s.prompt_size = 3;
  s.most_new = 10;
  s.params.min_tokens = 1;
  s.params.presence = 1;
  s.params.stop_ids = {7, 3};
  s.params.logit_bias = {{9, 1.f}, {3, 50.f}, {9, 2.f}};
  prepare_sampling(s, std::vector<int32_t>{7, 11});
  EXPECT_EQ(s.stop_ids, (std::vector<int32_t>{3, 7, 11}));
  ASSERT_EQ(s.biases.size(), 2u);
  EXPECT_EQ(s.biases[1].id, 9);
  EXPECT_EQ(s.biases[1].bias, 2.f);  // the last one given
  ASSERT_EQ(sample_row(s).biases.size(), 4u);
  EXPECT_EQ(sample_row(s).biases[0].id, 3);
  EXPECT_LT(sample_row(s).biases[0].bias, -1e30f);  // a stop id stays forbidden whatever its bias
  ASSERT_EQ(s.counts.size(), 2u);
  append_token(s, 6);
  append_token(s, 9);
  ASSERT_EQ(s.counts.size(), 3u);
  EXPECT_EQ(s.counts[1].id, 6);
  EXPECT_FALSE(s.counts[1].in_prompt);
  EXPECT_EQ(s.counts[2].in_output, 1);
  EXPECT_TRUE(s.counts[2].in_prompt);
  EXPECT_EQ(sample_row(s).biases.size(), 2u);  // min_tokens are there
  s.params.ignore_eos = true;
  prepare_sampling(s, std::vector<int32_t>{7, 11});
  EXPECT_FALSE(stops(s, 11));
}

}  // namespace
}  // namespace mettle

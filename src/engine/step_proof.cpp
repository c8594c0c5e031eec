#include "engine/step_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "models/block.h"

namespace mettle {
namespace {

constexpr int kMostTokens = 96;  // of one sequence
constexpr size_t kRowsLooked =
    4;  // of one step, first and last among them: 1 MB of logits each where vocabularies are large

struct Turn {
  int sequence = 0, rows = 0;
};
using Turns = std::vector<Turn>;  // of one step, ascending by sequence

int prompt_rows(int sequence) {
  constexpr int kFirst[] = {3, 5, 17};  // within a block, within a block, into the next
  return sequence < 3 ? kFirst[sequence] : 1 + sequence % 4;
}

// Prompts beside decode rows, decode of each bucket twice (a graph that is right at its first replay only), a chunk.
std::vector<Turns> script(int sequences, int most_rows) {
  std::vector<Turns> steps;
  for (int s = 0; s < sequences;) {
    Turns turns;
    int rows = 0;
    for (int d = 0; d < std::min(s, 2) && rows + 1 < most_rows; ++d, ++rows) turns.push_back({d, 1});
    for (const int last = s < 3 ? s + 1 : sequences; s < last && rows < most_rows; ++s) {
      turns.push_back({s, std::min(prompt_rows(s), most_rows - rows)});
      rows += turns.back().rows;
    }
    steps.push_back(std::move(turns));
  }
  const int decoders = std::min(sequences, most_rows);
  for (int n = 1; n <= decoders; n += n < 4 ? 1 : n < 64 ? 4 : 32)
    for (int again = 0; again < 2; ++again) {
      Turns turns;
      for (int s = 0; s < n; ++s) turns.push_back({s, 1});
      steps.push_back(std::move(turns));
    }
  if (sequences >= 2 && most_rows >= 3) steps.push_back({{0, 2}, {1, 1}});
  return steps;
}

// Of a deterministic engine: prompts beside each other, then all decode.
std::vector<Turns> script_together(int sequences, int most_rows) {
  std::vector<Turns> steps(1);
  int rows = 0;
  for (int s = 0; s < sequences; ++s) {
    const int prompt = std::min(2 + s * 7 % 23, most_rows);
    if (rows + prompt > most_rows) steps.emplace_back(), rows = 0;
    steps.back().push_back({s, prompt});
    rows += prompt;
  }
  for (int again = 0; again < 4 && sequences <= most_rows; ++again) {
    steps.emplace_back();
    for (int s = 0; s < sequences; ++s) steps.back().push_back({s, 1});
  }
  return steps;
}

// What does not fit the context or the blocks of a small set-up is left out, from the end.
std::vector<Turns> fitting(std::vector<Turns> steps, int sequences, int64_t tokens) {
  std::vector<int64_t> lengths(static_cast<size_t>(sequences), 0);
  size_t count = 0;
  for (; count < steps.size(); ++count) {
    bool fits = true;
    for (const Turn& t : steps[count]) fits &= (lengths[static_cast<size_t>(t.sequence)] += t.rows) <= tokens;
    if (!fits) break;
  }
  steps.resize(count);
  return steps;
}

std::vector<Turns> steps_of(const std::vector<Turns>& all, int sequence) {
  std::vector<Turns> own;
  for (const Turns& turns : all)
    for (const Turn& t : turns)
      if (t.sequence == sequence) own.push_back({t});
  return own;
}

// Four bytes that differ between neighbours and positions.
int32_t token_at(int sequence, int position, int vocab) { return (position * 31 + sequence * 17 + 7) % vocab; }

class Pass {
 public:
  Pass(Runner& runner, const Runner::Sizes& sizes, int sequences, int blocks_each)
      : runner_(runner), sizes_(sizes), vocab_(runner.ranks().front()->info().vocab), blocks_each_(blocks_each) {
    tables_.resize(static_cast<size_t>(sequences));
    for (int s = 0; s < sequences; ++s)  // neighbours in a table are not neighbours in memory
      for (int b = 0; b < blocks_each; ++b) tables_[static_cast<size_t>(s)].push_back(b * sequences + s);
  }

  // Logits of the looked-at rows of each step; `sequence`: of its row alone, nothing of steps without it.
  std::vector<std::vector<float>> run(const std::vector<Turns>& steps, uint8_t byte, bool replay, int sequence = -1) {
    const auto sequences = static_cast<int64_t>(tables_.size());
    lengths_.assign(tables_.size(), 0);
    runner_.fill_caches(byte, sequences * blocks_each_, sizes_.slots > 0 ? sequences : 0);
    std::vector<std::vector<float>> looked;
    for (const Turns& turns : steps) {
      runner_.fill_scratch(byte);
      run_step(turns, replay);
      if (sequence < 0) looked.push_back(rows_looked_at(turns.size()));
      for (size_t row = 0; row < turns.size(); ++row)
        if (turns[row].sequence == sequence) looked.push_back(logits_of(row));
    }
    return looked;
  }

 private:
  void run_step(const Turns& turns, bool replay) {
    std::vector<int32_t> ids, logit_rows;
    std::vector<BatchSequence> batch;
    for (const Turn& t : turns) {
      int& length = lengths_[static_cast<size_t>(t.sequence)];
      const bool slots = sizes_.slots > 0;
      batch.push_back({.first_row = static_cast<int>(ids.size()),
                       .q_len = t.rows,
                       .ctx_len = length,
                       .block_table = tables_[static_cast<size_t>(t.sequence)].data(),
                       .state_in = slots && length > 0 ? t.sequence : -1,
                       .state_out = slots ? t.sequence : -1});
      for (int r = 0; r < t.rows; ++r) ids.push_back(token_at(t.sequence, length + r, vocab_));
      length += t.rows;
      logit_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
    }
    const Step step{
        .batch = {.rows = static_cast<int>(ids.size()), .block_size = sizes_.block_size, .sequences = batch},
        .ids = ids.data(),
        .logit_rows = logit_rows,
        .logits = view_of(runner_.logits().data, DType::kF32, {std::ssize(logit_rows), vocab_})};
    if (replay)
      runner_.run(step);
    else
      runner_.run_eagerly(step);
    runner_.wait();
  }

  std::vector<float> logits_of(size_t row) {
    std::vector<float> out(static_cast<size_t>(vocab_));
    runner_.place().copy_out(out.data(), runner_.logits().as<float>() + row * out.size(), out.size() * sizeof(float));
    return out;
  }

  std::vector<float> rows_looked_at(size_t rows) {
    const size_t looked = std::min(rows, kRowsLooked);
    std::vector<float> out;
    for (size_t i = 0; i < looked; ++i) {
      const std::vector<float> row = logits_of(looked == 1 ? 0 : i * (rows - 1) / (looked - 1));
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  Runner& runner_;
  const Runner::Sizes& sizes_;
  int vocab_, blocks_each_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int> lengths_;
};

using Looked = std::vector<std::vector<float>>;

// The first logit that is not the same bit for bit, or not finite.
Verdict compare(const Looked& have, const Looked& need, size_t vocab, VerdictCode different, const char* what,
                uint64_t* comparisons) {
  for (size_t step = 0; step < have.size(); ++step)
    for (size_t i = 0; i < have[step].size(); ++i) {
      ++*comparisons;
      const float a = have[step][i], b = need[step][i];
      const auto place = [&] {
        return fmt::format("step {}, row {} of those compared, logit {}", step, i / vocab, i % vocab);
      };
      if (!std::isfinite(a)) return refuse(VerdictCode::kNotFinite, fmt::format("{}", a), "a finite value", place());
      if (std::memcmp(&a, &b, sizeof a) != 0)
        return refuse(different, fmt::format("{:.9g}", a), fmt::format("{:.9g}", b), what + place());
    }
  return {};
}

}  // namespace

std::string StepProof::text() const {
  if (!verdict.ok())
    return fmt::format("step proof: {}: {}: have {}, need {}", name_of(verdict.code), verdict.sentence, verdict.have,
                       verdict.need);
  return fmt::format("step proof: {} steps, {} passes, {} logits equal bit for bit whatever lay in memory{}{}", steps,
                     passes, comparisons, alone == 0 ? "" : fmt::format("; {} sequences alone as among others", alone),
                     graphs ? "" : "; captured graphs replayed something else and are not used");
}

StepProof prove_steps(Runner& runner, const Runner::Sizes& sizes) {
  const bool on_gpu = runner.place().kind() == DeviceKind::kCuda;
  int64_t sequences = on_gpu ? sizes.logit_rows : std::min(3, sizes.logit_rows);
  if (sizes.slots > 0) sequences = std::min(sequences, sizes.slots);
  sequences = std::max<int64_t>(1, std::min(sequences, sizes.blocks));
  const int64_t tokens = std::min<int64_t>({kMostTokens, sizes.context, sizes.blocks / sequences * sizes.block_size});
  const int count = static_cast<int>(sequences);
  const std::vector<Turns> steps = fitting(script(count, sizes.rows), count, tokens);

  const int blocks_each = static_cast<int>((tokens + sizes.block_size - 1) / sizes.block_size);
  const auto vocab = static_cast<size_t>(runner.ranks().front()->info().vocab);
  Pass pass(runner, sizes, count, blocks_each);
  StepProof proof{.steps = static_cast<int>(steps.size()), .passes = 3};
  // NaN in every dtype; 3.4e38 and the largest codes, launched one by one; zeros.
  const auto launched = pass.run(steps, 0x7f, false);
  const auto agree = [&](uint8_t byte) {
    return compare(pass.run(steps, byte, true), launched, vocab, VerdictCode::kIncompleteWrite,
                   "the result depends on what lay in memory before it, ", &proof.comparisons);
  };
  proof.verdict = agree(0xff);
  if (!proof.verdict.ok() && runner.graphs() > 0) {
    log::warn("engine: {}; trying without captured graphs", proof.text());
    runner.drop_graphs();
    proof.graphs = false;
    ++proof.passes;
    proof.verdict = agree(0xff);
  }
  if (proof.verdict.ok()) proof.verdict = agree(0x00);
  const std::vector<Turns> together = fitting(script_together(count, sizes.rows), count, tokens);
  for (int s = 0; sizes.deterministic && count > 1 && s < count && proof.verdict.ok(); s += (count + 2) / 3) {
    proof.verdict =
        compare(pass.run(steps_of(together, s), 0xff, true), pass.run(together, 0xff, true, s), vocab,
                VerdictCode::kRowDependent, "a sequence alone and the same among others, ", &proof.comparisons);
    ++proof.alone;
  }
  runner.fill_caches(0, sequences * blocks_each, sizes.slots > 0 ? sequences : 0);
  if (proof.verdict.ok() && proof.comparisons == 0)
    proof.verdict = refuse(VerdictCode::kUnproved, "0 comparisons", "at least 1", "no step fits this set-up");
  return proof;
}

}  // namespace mettle

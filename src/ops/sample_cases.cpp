#include "ops/sample_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace mettle {
namespace {

struct Maker {
  const SampleProblem& p;
  CaseRandom& random;

  SampleCase make(const std::string& kind, int rows, const SampleRow& row, double scale = 3) {
    SampleCase c;
    c.kind = kind;
    c.rows = rows;
    c.logits = CaseInput(rows, p.vocab, DType::kF32);
    c.logits.fill_normal(random, scale);
    for (int r = 0; r < rows; ++r) {
      for (int i = p.usable; i < p.vocab; ++i) c.logits.set(r, i, 60);  // padding stands above every logit
      SampleRow s = row;
      s.random = std::min((r + random.uniform()) / rows, 1 - 0x1p-53);
      s.top_logprobs = r % 4 == 0 ? std::min(20, p.usable) : r % 4;
      c.bare.push_back(s);
      // Penalties and bans fall on the likeliest tokens too, else nobody would notice one left out.
      const std::vector<int32_t> best = likeliest(c, r, std::min(12, p.usable / 2));
      std::set<int32_t> seen;
      for (const int32_t id : best)
        if (random.chance(0.5)) seen.insert(id);
      for (int i = 0; i < std::min(200, p.usable / 4); ++i) seen.insert(random.below(p.usable));
      c.counts.emplace_back();
      for (const int32_t id : seen) c.counts.back().push_back({id, random.below(3), random.chance(0.5)});
      c.biases.emplace_back();
      std::set<int32_t> banned;
      for (const int32_t id : best)
        if (random.chance(0.2)) banned.insert(id);
      for (int i = 0; i < std::min(50, p.usable / 8); ++i) banned.insert(random.below(p.usable));
      for (const int32_t id : banned)
        c.biases.back().push_back(
            {id, random.chance(0.7) ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.normal())});
    }
    return c;
  }
  std::vector<int32_t> likeliest(const SampleCase& c, int row, int count) const {
    const float* logits = c.logits.view().as<float>() + int64_t{row} * p.vocab;
    std::vector<int32_t> ids(static_cast<size_t>(p.usable));
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(),
                      [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    ids.resize(static_cast<size_t>(count));
    return ids;
  }
  // Ids on both sides of where a row may be cut among threads or blocks, ascending.
  std::vector<int32_t> borders() const {
    std::set<int32_t> ids = {0, p.usable - 1};
    const auto add = [&](int64_t first_of_next) {
      for (const int64_t id : {first_of_next - 1, first_of_next})
        if (id >= 0 && id < p.usable) ids.insert(static_cast<int32_t>(id));
    };
    constexpr int64_t kPiece = 1024;
    for (int64_t parts = 2; parts <= 4; ++parts)
      for (int64_t k = 1; k < parts; ++k) {
        add(p.usable * k / parts);
        add((p.usable + kPiece - 1) / kPiece * k / parts * kPiece);
      }
    return {ids.begin(), ids.end()};
  }
  // The borders from one on share the largest logit. Even rows take the first of them, odd ones draw from all.
  SampleCase ties_at_borders(int rows) {
    const std::vector<int32_t> ids = borders();
    SampleCase c = make("ties_at_borders", std::min(rows, static_cast<int>(ids.size())), {});
    forget(c);
    for (int r = 0; r < c.rows; ++r) {
      if (r % 2 == 1) c.bare[static_cast<size_t>(r)].temperature = 1;
      for (size_t i = static_cast<size_t>(r) * ids.size() / static_cast<size_t>(c.rows); i < ids.size(); ++i)
        c.logits.set(r, ids[i], 20);
    }
    return c;
  }
  // One border stays the best after its bias and penalty, and would not if either fell on it twice; the next one would
  // be the best if either were left out.
  SampleCase changes_at_borders(int rows) {
    const std::vector<int32_t> ids = borders();
    SampleCase c = make("changes_at_borders", std::min(rows, static_cast<int>(ids.size())), {.presence = 0.5f});
    forget(c);
    for (int r = 0; r < c.rows; ++r) {
      const auto at = static_cast<size_t>(r);
      for (const int32_t id : ids) c.logits.set(r, id, 20.125f);
      const size_t i = at * ids.size() / static_cast<size_t>(c.rows);
      const int32_t stays = ids[i], falls = ids[(i + 1) % ids.size()];
      c.logits.set(r, stays, 21);
      c.logits.set(r, falls, 21.5f);
      c.counts[at] = {{std::min(stays, falls), 1, false}, {std::max(stays, falls), 1, false}};
      c.biases[at] = {{stays, -0.25f}, {falls, -1}};
      if (falls < stays) std::swap(c.biases[at][0], c.biases[at][1]);
    }
    return c;
  }
  void forget(SampleCase& c) {
    for (auto& list : c.counts) list.clear();
    for (auto& list : c.biases) list.clear();
  }
};

}  // namespace

std::vector<SampleRow> SampleCase::params() const {
  std::vector<SampleRow> out = bare;
  for (size_t r = 0; r < out.size(); ++r) {
    out[r].counts = counts[r];
    out[r].biases = biases[r];
  }
  return out;
}

std::vector<SampleCase> sample_cases(const SampleProblem& p, uint64_t seed, int rows) {
  CaseRandom random(seed);
  Maker m{p, random};
  std::vector<SampleCase> out;
  // Greedy: the winner stands once in every part of the vocabulary.
  SampleCase greedy = m.make("greedy", rows, {});
  m.forget(greedy);
  for (int r = 0; r < rows; ++r)
    greedy.logits.set(r, (int64_t{r} * p.usable / rows + p.usable / (2 * rows)) % p.usable, 30);
  greedy.logits.set(rows - 1, p.usable - 1, 40);
  out.push_back(std::move(greedy));
  out.push_back(m.make("greedy_one_row", 1, {}));
  out.push_back(m.make("temperature", rows, {.temperature = 0.7f}));
  out.push_back(m.make("top_k", rows, {.temperature = 1, .top_k = 20}));
  out.push_back(m.make("top_k_1", 3, {.temperature = 1.5f, .top_k = 1}));
  out.push_back(m.make("top_p", rows, {.temperature = 0.8f, .top_p = 0.9f}));
  out.push_back(m.make("min_p", rows, {.temperature = 1.3f, .min_p = 0.05f}));
  out.push_back(m.make("penalties", rows, {.repetition = 1.3f, .presence = 1.5f, .frequency = 0.4f}));
  // Many repetitions of the likeliest: the best token turns on how often each was drawn.
  SampleCase counts = m.make("counts", rows, {.repetition = 1.02f, .presence = 0.3f, .frequency = 0.15f});
  for (int r = 0; r < rows; ++r)
    for (TokenCount& c : counts.counts[static_cast<size_t>(r)]) c.in_output = random.below(12);
  out.push_back(std::move(counts));
  out.push_back(m.make("everything", rows,
                       {.temperature = 0.6f,
                        .top_k = 20,
                        .top_p = 0.95f,
                        .min_p = 0.01f,
                        .repetition = 1.1f,
                        .presence = 0.5f,
                        .frequency = 0.2f}));
  SampleCase ties = m.make("ties", rows, {});
  m.forget(ties);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < p.usable; ++i) ties.logits.set(r, i, std::round(ties.logits.get(r, i) / 2));
  for (int r = 0; r < rows; ++r)
    for (int i = std::max(0, p.usable - 10); i < p.usable; ++i) ties.logits.set(r, i, (i - p.usable + 10) / 2 + 9);
  out.push_back(std::move(ties));
  SampleCase cut = m.make("ties_at_cut", rows, {.temperature = 1, .top_k = std::min(20, p.usable)});
  m.forget(cut);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < p.usable; ++i) cut.logits.set(r, i, std::round(cut.logits.get(r, i)));
  out.push_back(std::move(cut));
  SampleCase bad = m.make("not_finite", 5, {});
  bad.logits.set(1, p.usable / 3, std::nan(""));
  bad.logits.set(2, p.usable - 1, INFINITY);
  bad.logits.set(3, 0, -INFINITY);
  if (p.vocab > p.usable) bad.logits.set(4, p.vocab - 1, std::nan(""));  // padding may hold anything
  out.push_back(std::move(bad));
  SampleCase sharp = m.make("two_tokens", 2 * rows, {.temperature = 0.9f});
  m.forget(sharp);
  for (int r = 0; r < sharp.rows; ++r) {
    for (int i = 0; i < p.usable; ++i) sharp.logits.set(r, i, -20);
    sharp.logits.set(r, 5 % p.usable, 1);
    sharp.logits.set(r, p.usable * 2 / 3, 0.25);
  }
  out.push_back(std::move(sharp));
  SampleCase negative = m.make("all_negative", rows, {.temperature = 1, .repetition = 1.3f});
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < p.usable; ++i) negative.logits.set(r, i, negative.logits.get(r, i) - 30);
  out.push_back(std::move(negative));
  SampleCase mixed = m.make("mixed_rows", std::min(rows, 33), {.temperature = 1});
  for (int r = 0; r < mixed.rows; ++r) {
    SampleRow& s = mixed.bare[static_cast<size_t>(r)];
    s.temperature = r % 3 == 0 ? 0 : 0.5f + 0.1f * static_cast<float>(r % 7);
    s.top_k = r % 5 == 0 ? 0 : 1 + r * 3;
    s.top_p = r % 2 == 0 ? 1 : 0.5f;
  }
  out.push_back(std::move(mixed));
  if (m.borders().size() >= 4) {
    out.push_back(m.ties_at_borders(rows));
    out.push_back(m.changes_at_borders(rows));
  }
  return out;
}

}  // namespace mettle

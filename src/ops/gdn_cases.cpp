#include "ops/gdn_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <functional>

namespace mettle {
namespace {

struct Length {
  int q;
  bool carried;  // starts from a state
  bool in_place = false;
};

struct Knobs {
  double gain = 1;                        // of qkv
  double rate_low = 0.02, rate_high = 8;  // exp(a_log)
  double dt_low = -2, dt_high = 0;
  double conv = 0.5;
};

struct Maker {
  const GdnProblem& p;
  CaseRandom& random;
  Layout layout;

  std::shared_ptr<const GdnCaseWeights> typical(const Knobs& k = {}) {
    auto w = std::make_shared<GdnCaseWeights>();
    const int64_t keys = int64_t{p.key_heads} * p.dk, values = int64_t{p.value_heads} * p.dv;
    CaseWeight qkv = case_weight(p.in_format, {keys, keys, values}, p.hidden, CaseFill::kTypical, random, k.gain);
    CaseWeight z = case_weight(p.in_format, {values}, p.hidden, CaseFill::kTypical, random, 1);
    CaseWeight ba = case_weight(p.ba_format, {p.value_heads, p.value_heads}, p.hidden, CaseFill::kTypical, random, 1);
    CaseWeight out = case_weight(p.out_format, {p.hidden}, values, CaseFill::kTypical, random, 1);
    RawGdn& r = w->raw;
    r = {qkv.raw, z.raw, ba.raw, out.raw, {}, {}, {}, {}};
    for (int i = 0; i < p.channels() * p.conv; ++i) r.conv.push_back(static_cast<float>(random.normal() * k.conv));
    for (int h = 0; h < p.value_heads; ++h) {
      r.a_log.push_back(
          static_cast<float>(std::log(k.rate_low * std::pow(k.rate_high / k.rate_low, random.uniform()))));
      r.dt_bias.push_back(static_cast<float>(k.dt_low + (k.dt_high - k.dt_low) * random.uniform()));
    }
    for (int i = 0; i < p.dv; ++i) r.norm.push_back(static_cast<float>(1 + 0.1 * random.normal()));
    w->packed = pack_gdn(layout, r);
    w->memory = {std::move(qkv), std::move(z), std::move(ba), std::move(out)};
    return w;
  }

  GdnCase make(const std::string& kind, std::shared_ptr<const GdnCaseWeights> weights,
               const std::vector<Length>& lengths, double scale = 1, double state_scale = 0.1, int twins = 0) {
    GdnCase c;
    c.kind = kind;
    c.weights = std::move(weights);
    c.batch.twins = twins;
    // Slots out of order; slot 0 belongs to nobody. Twins start from one state.
    c.slots = static_cast<int>(lengths.size()) + (twins > 0 ? twins : static_cast<int>(lengths.size())) + 1;
    std::vector<int> slots;
    for (int i = 1; i < c.slots; ++i) slots.push_back(i);
    for (size_t i = slots.size(); i > 1; --i)
      std::swap(slots[i - 1], slots[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    const int64_t channels = p.channels(), heads = int64_t{p.value_heads} * p.dk;
    c.conv_state = CaseInput(c.slots * channels, p.conv - 1, DType::kF32);
    c.state = CaseInput(c.slots * heads, p.dv, DType::kF32);
    for (int64_t r = 0; r < c.conv_state.rows(); ++r) c.conv_state.fill_row_nan(r);
    for (int64_t r = 0; r < c.state.rows(); ++r) c.state.fill_row_nan(r);
    for (const Length& l : lengths) {
      BatchSequence s{c.batch.rows, l.q, l.carried ? 100 : 0, nullptr, -1, slots.back()};
      slots.pop_back();
      const size_t number = c.batch.sequences.size();
      if (twins > 0 && number >= static_cast<size_t>(twins)) {
        s.state_in = c.batch.sequences[number % static_cast<size_t>(twins)].state_in;
      } else if (l.carried) {
        s.state_in = l.in_place ? s.state_out : slots.back();
        if (!l.in_place) slots.pop_back();
        for (int64_t ch = 0; ch < channels; ++ch)
          for (int j = 0; j < p.conv - 1; ++j) c.conv_state.set(s.state_in * channels + ch, j, random.normal() * scale);
        for (int64_t i = 0; i < heads; ++i)
          for (int64_t j = 0; j < p.dv; ++j) c.state.set(s.state_in * heads + i, j, random.normal() * state_scale);
      }
      c.batch.sequences.push_back(s);
      c.batch.rows += l.q;
    }
    c.x = CaseInput(c.batch.rows, p.hidden, dtype_of(p.activation));
    c.x.fill_normal(random, scale);
    for (int r = twins; twins > 0 && r < c.batch.rows; ++r)
      for (int64_t i = 0; i < p.hidden; ++i) c.x.set(r, i, c.x.get(r % twins, i));
    return c;
  }

  // Every column of the projections is an instruction and every row of x picks one: one-hot keys and queries, values of
  // 32 to 384 or 0 (silu and L2 norm exact), decay 0 or 1, beta 0, 1/2 or 1. The whole state is made of small dyadic
  // numbers, equal bit for bit in the sequential and the chunked form.
  GdnCase exact(const std::vector<Length>& lengths) {
    auto w = std::make_shared<GdnCaseWeights>();
    const int64_t keys = int64_t{p.key_heads} * p.dk, values = int64_t{p.value_heads} * p.dv;
    const int places = std::min(8, p.dk);
    std::vector<int> place(static_cast<size_t>(p.key_heads * places));
    for (int& at : place) at = random.below(p.dk);
    const auto draw = [&](int64_t rows, const std::function<double(int64_t, int64_t)>& value, WeightFormat format) {
      return case_weight_of(format, rows, p.hidden, value);
    };
    std::vector<int> hot(static_cast<size_t>(2 * p.key_heads * p.hidden));
    for (int& h : hot) h = random.below(places);
    CaseWeight qkv = draw(
        p.channels(),
        [&](int64_t r, int64_t col) {
          if (r >= 2 * keys) {
            constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 1, 2};
            return kValues[random.below(10)];
          }
          const int64_t head = r / p.dk;  // q heads, then k heads
          const int pick = hot[static_cast<size_t>(head * p.hidden + col)];
          return place[static_cast<size_t>(head % p.key_heads * places + pick)] == r % p.dk ? 2.0 : 0.0;
        },
        p.in_format);
    CaseWeight ba = draw(
        2 * int64_t{p.value_heads},
        [&](int64_t r, int64_t) {
          if (r < p.value_heads) return random.chance(0.8) ? 4.0 : random.chance(0.5) ? 0.0 : -4.0;
          return random.chance(0.03) ? 6.0 : -6.0;
        },
        p.ba_format);
    CaseWeight z = case_weight(p.in_format, {values}, p.hidden, CaseFill::kTypical, random, 0.1);
    CaseWeight out = case_weight(p.out_format, {p.hidden}, values, CaseFill::kTypical, random, 1);
    w->raw = {qkv.raw, z.raw, ba.raw, out.raw, {}, {}, {}, {}};
    for (int i = 0; i < p.channels() * p.conv; ++i) w->raw.conv.push_back(i % p.conv == p.conv - 1 ? 1.f : 0.f);
    w->raw.a_log.assign(static_cast<size_t>(p.value_heads), 0.f);
    w->raw.dt_bias.assign(static_cast<size_t>(p.value_heads), 0.f);
    for (int i = 0; i < p.dv; ++i) w->raw.norm.push_back(static_cast<float>(1 + 0.1 * random.normal()));
    w->packed = pack_gdn(layout, w->raw);
    w->memory = {std::move(qkv), std::move(z), std::move(ba), std::move(out)};
    GdnCase c = make("exact_state" + std::to_string(lengths.front().q), w, lengths, 0);
    c.exact_state = true;
    for (const BatchSequence& s : c.batch.sequences) {
      if (s.state_in < 0) continue;
      const int64_t heads = int64_t{p.value_heads} * p.dk;
      for (int64_t i = 0; i < heads; ++i)
        for (int64_t j = 0; j < p.dv; ++j) c.state.set(s.state_in * heads + i, j, 2 * (random.below(65) - 32));
    }
    for (int64_t r = 0; r < c.x.rows(); ++r) c.x.set(r, random.below(p.hidden), 64);
    return c;
  }
};

}  // namespace

std::vector<GdnCase> gdn_cases(const GdnProblem& p, uint64_t seed, int64_t budget, Layout layout) {
  CaseRandom random(seed);
  Maker m{p, random, layout};
  const auto weights = m.typical();
  std::vector<GdnCase> out;
  const auto generic = [&](const std::string& kind, const std::vector<Length>& lengths) {
    out.push_back(m.make(kind, weights, lengths));
    out.back().generic = true;
  };
  const int64_t row =
      int64_t{p.hidden} * (p.channels() + 2 * p.value_heads * p.dv) + int64_t{p.value_heads} * p.dk * p.dv * 3;
  const bool full = row * 300 <= budget;
  generic("one_row", {{1, true, true}});
  generic("decode", {{1, true}, {1, false}, {1, true, true}, {1, true}, {1, false}});
  generic("prefill", {{full ? 70 : 17, false}, {2, true}});
  generic("chunks", {{64, true}, {full ? 65 : 3, true, true}, {3, false}});
  if (full) generic("two_chunks", {{129, true}});
  if (!full) out.push_back(m.make("past_64", weights, {{67, true}}));
  out.push_back(m.make("slow_decay", m.typical({.rate_low = 0.001, .rate_high = 0.05}), {{full ? 100 : 20, true}}));
  out.push_back(m.make("late_softplus", m.typical({.rate_low = 16, .rate_high = 16.01, .dt_low = -13, .dt_high = -13}),
                       {{40, true}}));
  out.push_back(m.make("tiny_keys", m.typical({.conv = 0.01}), {{20, false}, {5, true}}));
  out.push_back(m.make("quiet_output", m.typical({.conv = 1e-3}), {{20, false}}, 0.05));
  out.push_back(m.exact({{1, true}}));
  out.push_back(m.exact({{full ? 70 : 18, true, true}, {5, false}}));
  if (full) out.push_back(m.exact({{129, true}}));
  for (const int count : case_decode_counts(layout, full))
    out.push_back(m.make(fmt::format("decode{}", count), weights,
                         std::vector<Length>(static_cast<size_t>(count), {1, true}), 1, 0.1, kTwins));
  out.back().generic = true;
  return out;
}

GdnCase gdn_typical_case(const GdnProblem& p, int rows, int sequences, uint64_t seed, Layout layout,
                         std::shared_ptr<const GdnCaseWeights> weights) {
  CaseRandom of_weights(seed), random(seed + 1);  // the inputs are the same whether weights are given or not
  if (weights == nullptr) weights = Maker{p, of_weights, layout}.typical();
  Maker m{p, random, layout};
  // One state is drawn, the others are its copies: what is timed does not ask for more, and there may be hundreds.
  GdnCase c = m.make("typical", std::move(weights), {{rows, true, true}});
  const auto from = static_cast<int64_t>(c.batch.sequences.front().state_in);
  const auto copies = [&](const CaseInput& one) {
    const int64_t height = one.rows() / c.slots;  // of a slot
    CaseInput all(sequences * height, one.cols(), DType::kF32);
    const auto bytes = static_cast<size_t>(height * one.cols()) * sizeof(float);
    const uint8_t* drawn = one.view().as<uint8_t>() + static_cast<size_t>(from) * bytes;
    for (int i = 0; i < sequences; ++i)
      std::memcpy(all.view().as<uint8_t>() + static_cast<size_t>(i) * bytes, drawn, bytes);
    return all;
  };
  c.conv_state = copies(c.conv_state);
  c.state = copies(c.state);
  c.slots = sequences;
  c.batch.sequences.clear();
  for (int i = 0; i < sequences; ++i) {
    const int first = rows * i / sequences;
    c.batch.sequences.push_back({first, rows * (i + 1) / sequences - first, 100, nullptr, i, i});
  }
  return c;
}

}  // namespace mettle

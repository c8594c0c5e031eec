// sample, cpu: no sort of the vocabulary. Tokens are dealt into bins by their distance from the best one; a bin is
// sorted only when a limit (top-k, top-p, min-p) or the drawn number falls into it.
#include <algorithm>

#include "ops/cpu/product.h"
#include "ops/sample.h"

namespace mettle {
namespace {

constexpr int kBins = 4096;
constexpr float kBinsPerNat = 128;  // the last bin begins 32 nats below the best token

// Scratch of one member.
struct Scratch {
  float* value = nullptr;    // [usable] adjusted logits
  double* exact = nullptr;   // [usable] the same in float64, when a row has penalties or biases
  float* weight = nullptr;   // [usable]
  int32_t* order = nullptr;  // [usable] ids by bin
  uint16_t* bin = nullptr;   // [usable]
  int32_t* first = nullptr;  // [kBins + 1]
  double* mass = nullptr;    // [kBins]
};

Scratch carve(reference::Carver& c, const SampleProblem& p) {
  const int64_t n = p.usable;
  return {c.take<float>(n),    c.take<double>(n),          c.take<float>(n),     c.take<int32_t>(n),
          c.take<uint16_t>(n), c.take<int32_t>(kBins + 1), c.take<double>(kBins)};
}

class Row {
 public:
  Row(const cpu::Kernels& kernels, const SampleProblem& p, const float* logits, const SampleRow& row, const Scratch& s)
      : kernels_(kernels), p_(p), logits_(logits), row_(row), s_(s) {}

  void operator()(SampleResult& result) {
    result = {};
    float top;
    if (!kernels_.max_finite(logits_, p_.usable, &top)) return;  // the token stays -1
    const double log_sum = top + std::log(kernels_.exp_sum(logits_, top, 1.f, nullptr, p_.usable));
    adjust();
    const int32_t best = best_token();
    if (value_[best] == -INFINITY) return;  // every token is forbidden
    result.token = row_.temperature > 0 ? draw(best) : best;
    result.logprob = static_cast<float>(logits_[result.token] - log_sum);
    const int wanted = std::min({row_.top_logprobs, 20, p_.usable});
    if (wanted > 0) best_raw(wanted, result.top_ids);
    for (int i = 0; i < wanted; ++i) result.top_logprobs[i] = static_cast<float>(logits_[result.top_ids[i]] - log_sum);
  }

 private:
  // Bias and mask, then penalties, in float64 where there are any.
  void adjust() {
    value_ = logits_;
    if (row_.biases.empty() && row_.counts.empty()) return;
    exact_ = s_.exact;
    std::copy_n(logits_, p_.usable, exact_);
    for (const TokenBias& b : row_.biases)
      if (b.id >= 0 && b.id < p_.usable) exact_[b.id] += static_cast<double>(b.bias);
    for (const TokenCount& c : row_.counts) {
      if (c.id < 0 || c.id >= p_.usable) continue;
      double& l = exact_[c.id];
      if (c.in_prompt || c.in_output > 0) l = l > 0 ? l / row_.repetition : l * row_.repetition;
      if (c.in_output > 0) l -= static_cast<double>(row_.presence) + static_cast<double>(row_.frequency) * c.in_output;
    }
    for (int i = 0; i < p_.usable; ++i) s_.value[i] = static_cast<float>(exact_[i]);
    value_ = s_.value;
  }

  // Rounding to float32 keeps the order but for new ties, which the exact values decide.
  bool before(int32_t a, int32_t b) const {
    const double x = exact_ != nullptr ? exact_[a] : value_[a], y = exact_ != nullptr ? exact_[b] : value_[b];
    return x != y ? x > y : a < b;
  }

  int32_t best_token() const {
    int32_t best = 0;
    for (int32_t i = 1; i < p_.usable; ++i)
      if (value_[i] >= value_[best] && before(i, best)) best = i;
    return best;
  }

  void best_raw(int wanted, int32_t* ids) const {
    int held = 0;
    for (int32_t i = 0; i < p_.usable; ++i) {
      if (held == wanted && !(logits_[i] > logits_[ids[held - 1]])) continue;
      int at = held < wanted ? held++ : held - 1;
      for (; at > 0 && logits_[i] > logits_[ids[at - 1]]; --at) ids[at] = ids[at - 1];
      ids[at] = i;
    }
  }

  void deal(float top) {
    const float factor = 1.f / row_.temperature;
    kernels_.exp_sum(value_, top, factor, s_.weight, p_.usable);
    const float scale = kBinsPerNat * factor;
    std::fill_n(s_.first, kBins + 1, 0);
    std::fill_n(s_.mass, kBins, 0.0);
    for (int i = 0; i < p_.usable; ++i) {
      const float distance = (top - value_[i]) * scale;
      const int bin = distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
      s_.bin[i] = static_cast<uint16_t>(bin);
      ++s_.first[bin + 1];
      s_.mass[bin] += static_cast<double>(s_.weight[i]);
    }
    for (int b = 0; b < kBins; ++b) s_.first[b + 1] += s_.first[b];
    for (int i = 0; i < p_.usable; ++i) s_.order[s_.first[s_.bin[i]]++] = i;
    for (int b = kBins; b > 0; --b) s_.first[b] = s_.first[b - 1];
    s_.first[0] = 0;
  }

  void sort_bin(int b) const {
    const auto less = [this](int32_t x, int32_t y) { return before(x, y); };
    if (!std::is_sorted(s_.order + s_.first[b], s_.order + s_.first[b + 1], less))
      std::sort(s_.order + s_.first[b], s_.order + s_.first[b + 1], less);
  }

  // How many tokens, best first, have a mass before them that is at most (or less than) `target`, of the first `count`.
  int reach(double target, int count) const {
    double before = 0;
    for (int b = 0; b < kBins && s_.first[b] < count; ++b) {
      if (s_.first[b + 1] <= count && before + s_.mass[b] <= target) {
        before += s_.mass[b];
        continue;
      }
      sort_bin(b);
      for (int i = s_.first[b]; i < std::min(s_.first[b + 1], count); ++i) {
        before += static_cast<double>(s_.weight[s_.order[i]]);
        if (before > target) return i;
      }
    }
    return count;
  }

  double mass_of(int count) const {
    double sum = 0;
    for (int b = 0; b < kBins && s_.first[b] < count; ++b) {
      if (s_.first[b + 1] <= count) {
        sum += s_.mass[b];
        continue;
      }
      sort_bin(b);
      for (int i = s_.first[b]; i < count; ++i) sum += static_cast<double>(s_.weight[s_.order[i]]);
    }
    return sum;
  }

  // Tokens of the first `count` that weigh at least min_p.
  int heavy(int count) const {
    for (int b = 0; b < kBins && s_.first[b] < count; ++b) {
      const bool all = std::all_of(s_.order + s_.first[b], s_.order + s_.first[b + 1],
                                   [&](int32_t id) { return !(s_.weight[id] < row_.min_p); });
      if (all) continue;
      sort_bin(b);
      for (int i = s_.first[b]; i < std::min(s_.first[b + 1], count); ++i)
        if (s_.weight[s_.order[i]] < row_.min_p) return std::max(i, 1);
    }
    return count;
  }

  int32_t draw(int32_t best) {
    deal(value_[best]);
    int count = row_.top_k > 0 ? std::min(row_.top_k, p_.usable) : p_.usable;
    if (row_.top_p < 1) {
      // The token that crosses stays.
      const double limit = row_.top_p * mass_of(count);
      count = std::min(count, reach(std::nextafter(limit, 0.0), count) + 1);
    }
    if (row_.min_p > 0) count = heavy(count);
    int at = reach(row_.random * mass_of(count), count);
    if (at == count) {  // rounding of the sums: the last token that weighs anything
      for (int b = 0; b < kBins && s_.first[b] < count; ++b)
        if (s_.first[b + 1] > s_.first[b]) sort_bin(b);
      while (--at > 0 && s_.weight[s_.order[at]] == 0) {
      }
    }
    return s_.order[at];
  }

  const cpu::Kernels& kernels_;
  const SampleProblem& p_;
  const float* logits_;
  const SampleRow& row_;
  const Scratch& s_;
  const float* value_ = nullptr;
  double* exact_ = nullptr;
};

void run(const Tactic& tactic, const SampleArgs& a, Stream& stream) {
  const int members = std::min(reference::members_of(stream), std::max(a.rows, 1));
  // One item per member: each has its own scratch.
  reference::for_each(stream, members, [&](int64_t member) {
    reference::Carver carver(a.ws);
    Scratch s = {};
    for (int64_t i = 0; i <= member; ++i) s = carve(carver, a.problem);
    const Span rows = share_of(a.rows, static_cast<int>(member), members);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const auto i = static_cast<size_t>(r);
      Row(cpu::kernels_of(tactic.isa), a.problem, a.logits.as<float>() + r * a.problem.vocab, a.params[i],
          s)(a.results[i]);
    }
  });
}

}  // namespace

extern const Backend<SampleOp> sample_cpu = {
    .name = "cpu",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = [](const SampleProblem&, const Device& device) { return cpu::cpu_supports(device, {}); },
    .tactics = [](const SampleProblem&, const Device& device) { return isa_tactics(device); },
    .workspace =
        [](const Tactic&, const SampleProblem& p, int, int members) {
          reference::Carver carver({});
          for (int i = 0; i < members; ++i) carve(carver, p);
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

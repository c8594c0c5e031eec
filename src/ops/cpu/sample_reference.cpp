// sample, reference: float64 throughout; the candidates sorted as far as the row's limits ask for.
#include <algorithm>
#include <numeric>

#include "ops/cpu/reference_math.h"
#include "ops/sample.h"

namespace mettle {
namespace {

// Scratch of one member.
struct Scratch {
  double* adjusted = nullptr;  // [usable]
  double* weight = nullptr;    // [usable] of the candidates, in order
  int32_t* order = nullptr;    // [usable]
};

Scratch carve(reference::Carver& c, const SampleProblem& p) {
  return {c.take<double>(p.usable), c.take<double>(p.usable), c.take<int32_t>(p.usable)};
}

// Bias and mask, then penalties.
void adjust(const SampleProblem& p, const float* logits, const SampleRow& row, double* out) {
  std::copy_n(logits, p.usable, out);
  for (const TokenBias& b : row.biases)
    if (b.id >= 0 && b.id < p.usable) out[b.id] += static_cast<double>(b.bias);
  for (const TokenCount& c : row.counts) {
    if (c.id < 0 || c.id >= p.usable) continue;
    double& l = out[c.id];
    if (c.in_prompt || c.in_output > 0) l = l > 0 ? l / row.repetition : l * row.repetition;
    if (c.in_output > 0) l -= static_cast<double>(row.presence) + static_cast<double>(row.frequency) * c.in_output;
  }
}

int32_t best_of(const double* l, int count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i)
    if (l[i] > l[best]) best = i;
  return best;
}

// Sorts the leading `count` ids by (value descending, id ascending).
template <class T>
void sort_best(const T* value, int32_t* order, int usable, int count) {
  std::iota(order, order + usable, 0);
  const auto before = [value](int32_t a, int32_t b) { return value[a] != value[b] ? value[a] > value[b] : a < b; };
  if (count < usable / 8)
    std::partial_sort(order, order + count, order + usable, before);
  else
    std::sort(order, order + usable, before);  // several times faster than a heap of nearly everything
}

int32_t draw(const SampleProblem& p, const SampleRow& row, const Scratch& s) {
  int count = row.top_k > 0 ? std::min(row.top_k, p.usable) : p.usable;
  sort_best(s.adjusted, s.order, p.usable, count);
  const double top = s.adjusted[s.order[0]];
  double total = 0;
  for (int i = 0; i < count; ++i) {
    s.weight[i] = std::exp((s.adjusted[s.order[i]] - top) / static_cast<double>(row.temperature));
    total += s.weight[i];
  }
  if (row.top_p < 1) {
    int keep = 0;
    for (double before = 0; keep < count && (keep == 0 || before < row.top_p * total); ++keep) before += s.weight[keep];
    count = keep;
  }
  while (count > 1 && s.weight[count - 1] < row.min_p) --count;
  double target = 0;
  for (int i = 0; i < count; ++i) target += s.weight[i];
  target *= row.random;
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    sum += s.weight[i];
    if (sum > target) return s.order[i];
  }
  return s.order[count - 1];
}

void sample(const SampleProblem& p, const float* logits, const SampleRow& row, const Scratch& s, SampleResult& result) {
  result = {};
  double sum = 0;
  float top = logits[0];
  for (int i = 0; i < p.usable; ++i) {
    if (!std::isfinite(logits[i])) return;  // the token stays -1
    top = std::max(top, logits[i]);
  }
  for (int i = 0; i < p.usable; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  const double log_sum = top + std::log(sum);
  adjust(p, logits, row, s.adjusted);
  const int32_t best = best_of(s.adjusted, p.usable);
  if (s.adjusted[best] == -INFINITY) return;  // every token is forbidden
  result.token = row.temperature > 0 ? draw(p, row, s) : best;
  result.logprob = static_cast<float>(logits[result.token] - log_sum);
  const int wanted = std::min({row.top_logprobs, 20, p.usable});
  if (wanted <= 0) return;
  sort_best(logits, s.order, p.usable, wanted);
  for (int i = 0; i < wanted; ++i) {
    result.top_ids[i] = s.order[i];
    result.top_logprobs[i] = static_cast<float>(logits[s.order[i]] - log_sum);
  }
}

void run(const Tactic&, const SampleArgs& a, Stream& stream) {
  const int members = std::min(reference::members_of(stream), std::max(a.rows, 1));
  // One item per member: each has its own scratch.
  reference::for_each(stream, members, [&](int64_t member) {
    reference::Carver carver(a.ws);
    Scratch s = {};
    for (int64_t i = 0; i <= member; ++i) s = carve(carver, a.problem);
    const Span rows = share_of(a.rows, static_cast<int>(member), members);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const auto i = static_cast<size_t>(r);
      sample(a.problem, a.logits.as<float>() + r * a.problem.vocab, a.params[i], s, a.results[i]);
    }
  });
}

}  // namespace

extern const Backend<SampleOp> sample_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kNone,
    .supports = [](const SampleProblem&, const Device& device) { return reference::on_cpu(device); },
    .tactics = [](const SampleProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const SampleProblem& p, int, int members) {
          reference::Carver carver({});
          for (int i = 0; i < members; ++i) carve(carver, p);
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

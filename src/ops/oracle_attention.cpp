// The oracle of attention: appended rows, and the partial under the caches as the backend left them.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/oracle.h"
#include "ops/oracle_math.h"

namespace mettle::oracle {
namespace {

struct Place {
  const BatchSequence* sequence;
  int64_t position;
};

Place place_of(const Batch& batch, int row) {
  for (const BatchSequence& s : batch.sequences)
    if (row < s.first_row + s.q_len) return {&s, static_cast<int64_t>(s.ctx_len) + row - s.first_row};
  fail(Code::kInternal, "attention oracle: row " + std::to_string(row) + " of " + std::to_string(batch.rows));
}

// One head in place: norm, then rotation by angle = float32(position) * inv_freq in float32.
void norm_and_rotate(const AttentionProblem& p, const std::vector<float>& weight, const std::vector<float>& inv_freq,
                     int64_t position, double* value, double* sigma, bool exact) {
  if (p.qk_norm) {
    std::vector<double> factor(weight.begin(), weight.end());
    if (p.norm_plus_one)
      for (double& f : factor) f += 1;
    normalise(value, sigma, p.head_dim, 1.0 / p.head_dim, static_cast<double>(p.eps), factor.data(), exact);
  }
  const int half = p.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[static_cast<size_t>(i)];
    const double c = std::cos(static_cast<double>(angle)), s = std::sin(static_cast<double>(angle));
    const double a = value[i], b = value[i + half], sa = sigma[i], sb = sigma[i + half];
    value[i] = a * c - b * s;
    value[i + half] = b * c + a * s;
    if (exact) continue;
    const double own = square(8 * kU * (std::fabs(a) + std::fabs(b)));
    sigma[i] = std::sqrt(own + square(c * sa) + square(s * sb));
    sigma[i + half] = std::sqrt(own + square(c * sb) + square(s * sa));
  }
  if (p.qk_norm && !exact)
    for (int i = p.rotary_dim; i < p.head_dim; ++i) sigma[i] = std::hypot(sigma[i], 8 * kU * value[i]);
}

double cached(const TensorView& cache, int64_t at, double scale) {
  switch (cache.dtype) {
    case DType::kF32:
      return cache.as<float>()[at];
    case DType::kE4M3:
      return e4m3_to_float(cache.as<uint8_t>()[at]) * scale;
    default:
      return bf16_to_float(cache.as<uint16_t>()[at]);
  }
}

// Keys or values that a row sees through one kv head, into a matrix that is used again: far positions make it large.
void see(const AttentionProblem& p, const TensorView& cache, float scale, const Place& at, int kv_head, Matrix& m) {
  m.rows = at.position + 1;
  m.cols = p.head_dim;
  m.data.resize(static_cast<size_t>(m.rows * m.cols));
  for (int64_t j = 0; j < m.rows; ++j) {
    const int64_t block = at.sequence->block_table[j / p.block_size];
    const int64_t first = ((block * p.block_size + j % p.block_size) * p.kv_heads + kv_head) * p.head_dim;
    for (int64_t d = 0; d < p.head_dim; ++d) m[j][d] = cached(cache, first + d, static_cast<double>(scale));
  }
}

// A query head with its errors.
struct Query {
  const double *value, *sigma, *jump;
};

double root_of_squares(const double* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += square(x[i]);
  return std::sqrt(sum);
}

struct Score {
  double dot = 0, magnitude2 = 0, carried2 = 0, jumps = 0;
};

// Of a query and a key; four partial sums only for speed.
Score score_of(const Query& q, const double* key, int64_t d) {
  Pair dot[2] = {}, magnitude2[2] = {}, carried2[2] = {}, jumps[2] = {};
  int64_t i = 0;
  for (; i + 4 <= d; i += 4)
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t at = i + 2 * half;
      const Pair k = pair_at(key + at), product = pair_at(q.value + at) * k, error = pair_at(q.sigma + at) * k;
      dot[half] += product;
      magnitude2[half] += product * product;
      carried2[half] += error * error;
      jumps[half] += pair_at(q.jump + at) * Pair{std::fabs(k[0]), std::fabs(k[1])};
    }
  Score score{pair_sum(dot[0], dot[1]), pair_sum(magnitude2[0], magnitude2[1]), pair_sum(carried2[0], carried2[1]),
              pair_sum(jumps[0], jumps[1])};
  for (; i < d; ++i) {
    const double product = q.value[i] * key[i];
    score.dot += product;
    score.magnitude2 += square(product);
    score.carried2 += square(q.sigma[i] * key[i]);
    score.jumps += q.jump[i] * std::fabs(key[i]);
  }
  return score;
}

// Attention of one query head: o with sigma, rnd and jump into row 0 of `out` (head_dim columns).
void attend(const AttentionProblem& p, const Query& q, const Matrix& keys, const Matrix& values, bool p_bf16,
            bool exact, Values& out) {
  const int64_t n = keys.rows, d = p.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  const double relative = root_of_squares(q.sigma, d) / std::max(root_of_squares(q.value, d), 1e-300);
  // A cache's scale goes into that of the scores: one rounding that all keys share.
  const double scaled = p.cache == CacheFormat::kE4M3 ? kU : 0;
  std::vector<double> z(static_cast<size_t>(n)), own(z.size()), carried(z.size()), jump(z.size());
  double top = -INFINITY;
  for (int64_t j = 0; j < n; ++j) {
    const Score score = score_of(q, keys[j], d);
    const double dot = score.dot;
    const auto at = static_cast<size_t>(j);
    z[at] = dot * scale;
    own[at] = 2 * sum_sigma(d, std::sqrt(score.magnitude2), std::fabs(dot)) * scale;
    carried[at] = std::sqrt(score.carried2 + square(relative * dot) + square(scaled * dot)) * scale;
    jump[at] = score.jumps * scale;
    top = std::max(top, z[at]);
  }
  std::vector<double> weight(z.size());
  double sum = 0;
  for (size_t j = 0; j < z.size(); ++j) {
    weight[j] = std::exp(z[j] - top);
    sum += weight[j];
  }
  std::vector<double> weighted(static_cast<size_t>(d)), squares(weighted), jumped(weighted), shifted(weighted);
  double *o = out.value[0], *of_scores = weighted.data(), *of_values = squares.data(), *of_jumps = jumped.data();
  double rel_sum = 0, jump_sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    const auto at = static_cast<size_t>(j);
    const double probability = weight[at] / sum, distance = top - z[at];
    const double own_p = exact ? round_to(probability, DType::kF32) : probability;
    z[at] = own_p;
    const double p2 = square(own_p), rel2 = p2 * (square(own[at]) + square((4 + distance) * kU)),
                 jump_p = own_p * jump[at];
    rel_sum += rel2;
    jump_sum += jump_p;
    const double* value = values[j];
    for (int64_t i = 0; i < d; ++i) o[i] += own_p * value[i];
    for (int64_t i = 0; i < d && !exact; ++i) {
      const double v2 = square(value[i]);
      of_scores[i] += rel2 * v2;
      of_values[i] += p2 * v2;
      of_jumps[i] += jump_p * std::fabs(value[i]);
    }
  }
  if (exact) return;
  // Errors of q move the scores of all keys together, so they add up without any root.
  for (int64_t j = 0; j < n; ++j) {
    const double by = z[static_cast<size_t>(j)] * carried[static_cast<size_t>(j)];
    const double* value = values[j];
    for (int64_t i = 0; i < d; ++i) shifted[static_cast<size_t>(i)] += by * std::fabs(value[i] - o[i]);
  }
  for (int64_t i = 0; i < d; ++i) {
    const auto at = static_cast<size_t>(i);
    out.sigma[0][i] = std::sqrt(weighted[at] + square(o[i]) * rel_sum + square(shifted[at]) +
                                square(sum_sigma(n, std::sqrt(squares[at]), std::fabs(o[i]))) + square(8 * kU * o[i]));
    out.rnd[0][i] = p_bf16 ? kNu * std::sqrt(squares[at]) : 0;
    out.jump[0][i] = jumped[at] + std::fabs(o[i]) * jump_sum;
  }
}

// Appended values in units of their scale, before they are rounded to codes; whether the scale divides or its
// reciprocal multiplies is the backend's.
void to_codes(Values& values, float scale, bool exact) {
  const double by = 1 / static_cast<double>(scale);
  for (size_t i = 0; i < values.value.data.size(); ++i) {
    double &value = values.value.data[i], &sigma = values.sigma.data[i];
    value *= by;
    sigma = exact ? 0 : std::hypot(sigma * by, 2 * kU * value);
  }
}

}  // namespace

AppendExpected attention_append(const AttentionProblem& problem, const RawAttention& weights, const Batch& batch,
                                const TensorView& x, const Options& options) {
  const int64_t keys_at = static_cast<int64_t>(problem.heads) * (problem.gate ? 2 : 1) * problem.head_dim;
  const int64_t width = static_cast<int64_t>(problem.kv_heads) * problem.head_dim;
  const Values input = exact_values(read_all(x));
  Values k = product(slice_rows(weights.qkv, keys_at, keys_at + width), input, options.exact);
  Values v = product(slice_rows(weights.qkv, keys_at + width, keys_at + 2 * width), input, options.exact);
  for (int64_t r = 0; r < k.value.rows; ++r)
    for (int h = 0; h < problem.kv_heads; ++h)
      norm_and_rotate(problem, weights.k_norm, weights.inv_freq, place_of(batch, static_cast<int>(r)).position,
                      k.value[r] + h * problem.head_dim, k.sigma[r] + h * problem.head_dim, options.exact);
  AppendExpected expected{Expected(k.value.rows, width, problem.cache_dtype()),
                          Expected(k.value.rows, width, problem.cache_dtype())};
  if (problem.cache == CacheFormat::kE4M3) {
    to_codes(k, weights.k_scale, options.exact);
    to_codes(v, weights.v_scale, options.exact);
  }
  fill(expected.k, k);
  fill(expected.v, v);
  return expected;
}

Expected attention(const AttentionProblem& problem, const RawAttention& weights, const Batch& batch,
                   const TensorView& x, const TensorView& k_cache, const TensorView& v_cache, std::span<const int> rows,
                   const Options& options) {
  const AttentionProblem& p = problem;
  const bool bf16 = p.activation == Activation::kBf16, exact = options.exact;
  const int64_t stride = p.gate ? 2 * p.head_dim : p.head_dim;
  Values qg = product(slice_rows(weights.qkv, 0, p.heads * stride), exact_values(read_rows(x, rows)), exact);
  Values core(qg.value.rows, static_cast<int64_t>(p.heads) * p.head_dim);
  Matrix keys, values;
  for (int64_t r = 0; r < qg.value.rows; ++r) {
    const Place at = place_of(batch, rows[static_cast<size_t>(r)]);
    for (int h = 0; h < p.heads; ++h) {
      const int group = p.heads / p.kv_heads;
      if (h % group == 0) {
        see(p, k_cache, weights.k_scale, at, h / group, keys);
        see(p, v_cache, weights.v_scale, at, h / group, values);
      }
      const int64_t first = h * stride;
      double *value = qg.value[r] + first, *sigma = qg.sigma[r] + first, *jump = qg.jump[r] + first;
      norm_and_rotate(p, weights.q_norm, weights.inv_freq, at.position, value, sigma, exact);
      if (bf16 && options.numerics.q == Rounds::kBf16)
        for (int i = 0; i < p.head_dim; ++i) {
          const Tie t = tie(value[i], sigma[i]);
          value[i] = t.value;
          jump[i] = t.jump;
          sigma[i] = 0;
        }
      Values o(1, p.head_dim);
      attend(p, {value, sigma, jump}, keys, values, bf16 && options.numerics.p == Rounds::kBf16, exact, o);
      for (int i = 0; i < p.head_dim; ++i) {
        double a = 1, sigma_a = 0;
        if (p.gate) {
          a = sigmoid(value[p.head_dim + i]);
          sigma_a = a * (1 - a) * sigma[p.head_dim + i];
          if (exact) a = round_to(a, DType::kF32);
        }
        const int64_t c = h * p.head_dim + i;
        core.value[r][c] = exact ? round_to(round_to(o.value[0][i], DType::kF32) * a, DType::kF32) : o.value[0][i] * a;
        core.sigma[r][c] = exact ? 0
                                 : std::sqrt(square(a * o.sigma[0][i]) + square(o.value[0][i] * sigma_a) +
                                             square(6 * kU * core.value[r][c]));
        core.rnd[r][c] = a * o.rnd[0][i];
        core.jump[r][c] = a * o.jump[0][i];
      }
    }
  }
  if (bf16 && options.numerics.core_out == Rounds::kBf16) round_values(core);
  Expected expected(core.value.rows, p.hidden, DType::kF32);
  fill(expected, product(weights.out, core, exact));
  return expected;
}

}  // namespace mettle::oracle

// The oracle of gdn: the recurrence in float64 with companions that follow the float32 errors of the state.
#include <algorithm>
#include <cmath>
#include <deque>

#include "ops/oracle.h"
#include "ops/oracle_math.h"

namespace mettle::oracle {
namespace {

constexpr double kStep = 16 * kU;  // float32 roundings in one step of the recurrence

double sum_squares(const double* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += square(x[i]);
  return sum;
}

// rms(sigma) / rms(value) of a vector.
double relative(const double* value, const double* sigma, int64_t count) {
  return std::sqrt(sum_squares(sigma, count) / std::max(sum_squares(value, count), 1e-300));
}

// Rows of qkv with the history in front: [conv - 1 + rows of the sequence, channels].
Values with_history(const GdnProblem& p, const BatchSequence& s, const Values& qkv, const TensorView& conv_state) {
  const int past = p.conv - 1;
  Values v(past + s.q_len, p.channels());
  for (int j = 0; j < past && s.state_in >= 0; ++j)
    for (int64_t c = 0; c < p.channels(); ++c)
      v.value[j][c] = conv_state.as<float>()[(s.state_in * static_cast<int64_t>(p.channels()) + c) * past + j];
  for (int i = 0; i < s.q_len; ++i) {
    std::copy_n(qkv.value[s.first_row + i], p.channels(), v.value[past + i]);
    std::copy_n(qkv.sigma[s.first_row + i], p.channels(), v.sigma[past + i]);
  }
  return v;
}

// silu of the causal convolution; then q and k L2-normalised, q times dk^-0.5.
Values convolve(const GdnProblem& p, const std::vector<float>& taps, const Values& input, int rows, bool exact) {
  Values c(rows, p.channels());
  for (int r = 0; r < rows; ++r)
    for (int64_t ch = 0; ch < p.channels(); ++ch) {
      double sum = 0, magnitude = 0, variance = 0;
      for (int j = 0; j < p.conv; ++j) {
        const double tap = static_cast<double>(taps[static_cast<size_t>(ch * p.conv + j)]),
                     term = tap * input.value[r + j][ch];
        sum += term;
        magnitude += std::fabs(term);
        variance += square(tap * input.sigma[r + j][ch]);
      }
      variance += square(2 * kU * magnitude);
      c.value[r][ch] = exact ? round_to(silu(round_to(sum, DType::kF32)), DType::kF32) : silu(sum);
      if (!exact) c.sigma[r][ch] = std::sqrt(square(silu_slope(sum)) * variance + square(8 * kU * silu(sum)));
    }
  const double q_scale = 1 / std::sqrt(static_cast<double>(p.dk));
  for (int r = 0; r < rows; ++r)
    for (int64_t h = 0; h < 2LL * p.key_heads; ++h) {
      double *value = c.value[r] + h * p.dk, *sigma = c.sigma[r] + h * p.dk;
      normalise(value, sigma, p.dk, 1, 1e-6, nullptr, exact);
      const double scale = h < p.key_heads ? q_scale : 1;
      for (int i = 0; i < p.dk; ++i) {
        value[i] = exact ? round_to(value[i] * scale, DType::kF32) : value[i] * scale;
        if (!exact) sigma[i] = std::hypot(sigma[i] * scale, 6 * kU * value[i]);
      }
    }
  return c;
}

// The scalars of one row and head.
struct Gates {
  double beta, beta_relative;  // sigma of beta over beta
  double g, g_sigma;
};

Gates gates_of(const GdnProblem& p, const RawGdn& w, const Values& ba, int64_t row, int head, bool exact) {
  const double b = ba.value[row][head],
               a = ba.value[row][p.value_heads + head] + static_cast<double>(w.dt_bias[static_cast<size_t>(head)]);
  const double rate = std::exp(static_cast<double>(w.a_log[static_cast<size_t>(head)]));
  Gates gates{sigmoid(b), 0, -rate * (a > 20 ? a : std::log1p(std::exp(a))), 0};
  if (exact) {
    gates.beta = gates.beta < 1e-38 ? 0 : round_to(gates.beta, DType::kF32);
    gates.g = round_to(gates.g, DType::kF32);
  } else {
    gates.beta_relative = (1 - gates.beta) * ba.sigma[row][head];
    // a + dt_bias is one more float32 sum.
    gates.g_sigma = rate * sigmoid(a) * std::hypot(ba.sigma[row][p.value_heads + head], kU * a);
  }
  return gates;
}

// The state of one value head with its companions per column: V (variance), D (drift, grows without a root), B
// (roundings of chunk intermediates).
struct State {
  Matrix s;  // [dk, dv]
  std::vector<double> variance, drift, inner;
};

// A past write, for the chunk form: o also reads (q . k) u of the last 64 rows.
struct Write {
  const double* k;
  std::vector<double> u;
  double decay;
};

struct Inputs {
  const double *q, *k, *v, *q_sigma, *k_sigma, *v_sigma;
  Gates gates;
};

// One step; o with sigma and rnd into row 0 of `out`.
void step(const GdnProblem& p, const Inputs& in, bool bf16_inner, bool exact, State& state, std::deque<Write>& writes,
          Values& out) {
  const int64_t dk = p.dk, dv = p.dv;
  const double beta = in.gates.beta, g = in.gates.g;
  const double decay = exact ? round_to(std::exp(g), DType::kF32) : std::exp(g);
  std::vector<double> read(static_cast<size_t>(dv)), n2(read), k_noise(read), k2s2(read), u(read);
  for (int64_t i = 0; i < dk; ++i) {
    double *s = state.s[i], *of_read = read.data(), *of_squares = n2.data(), *of_noise = k_noise.data(),
           *of_products = k2s2.data();
    const double k = in.k[i], k_sigma = in.k_sigma[i];
    for (int64_t j = 0; j < dv; ++j) {
      s[j] *= decay;
      of_read[j] += s[j] * k;
      of_squares[j] += s[j] * s[j];
      of_noise[j] += square(s[j] * k_sigma);
      of_products[j] += square(s[j] * k);
    }
  }
  const double k_relative = relative(in.k, in.k_sigma, dk), k_sigma2 = sum_squares(in.k_sigma, dk);
  for (int64_t j = 0; j < dv; ++j) {
    const auto at = static_cast<size_t>(j);
    u[at] = beta * (in.v[j] - read[at]);
    if (exact) continue;
    state.variance[at] = square(decay) * state.variance[at] +
                         square(kStep) * (square(beta) * (n2[at] + square(in.v[j])) + square(u[at])) +
                         square(kU) * n2[at] +
                         square(beta) * (square(in.v_sigma[j]) + k_noise[at] + square(read[at] * k_relative)) +
                         square(u[at]) * (k_sigma2 + square(in.gates.beta_relative));
    state.drift[at] = decay * state.drift[at] + ((4 + 8 * std::fabs(g)) * kU + in.gates.g_sigma) * std::sqrt(n2[at]);
    if (bf16_inner)
      state.inner[at] =
          square(decay) * state.inner[at] + square(kNu) * (4 * square(u[at]) + 2 * square(beta) * k2s2[at]);
  }
  std::vector<double> q2s2(read.size()), q_noise(read.size());
  std::fill_n(out.value[0], dv, 0.0);
  for (int64_t i = 0; i < dk; ++i) {
    double *s = state.s[i], *o = out.value[0], *of_products = q2s2.data(), *of_noise = q_noise.data();
    const double *write = u.data(), k = in.k[i], q = in.q[i], q_sigma = in.q_sigma[i];
    for (int64_t j = 0; j < dv; ++j) {
      s[j] += k * write[j];
      o[j] += s[j] * q;
      of_products[j] += square(s[j] * q);
      of_noise[j] += square(s[j] * q_sigma);
    }
  }
  if (exact) return;
  const double q2 = sum_squares(in.q, dk), q_relative = relative(in.q, in.q_sigma, dk);
  for (int64_t j = 0; j < dv; ++j) {
    const auto at = static_cast<size_t>(j);
    const double o = out.value[0][j];
    out.sigma[0][j] = std::sqrt(q2 * square(std::sqrt(state.variance[at]) + state.drift[at]) +
                                square(sum_sigma(dk, std::sqrt(q2s2[at]), std::fabs(o))) + square(kStep * o) +
                                q_noise[at] + square(o * q_relative));
    out.rnd[0][j] = bf16_inner ? q2 * state.inner[at] + 2 * square(kNu) * q2s2[at] : 0;
  }
  if (!bf16_inner) return;
  for (Write& w : writes) w.decay *= decay;
  writes.push_back({in.k, u, 1});
  if (writes.size() > 65) writes.pop_front();
  for (const Write& w : writes) {
    double dot = 0;
    for (int64_t i = 0; i < dk; ++i) dot += in.q[i] * w.k[i];
    for (int64_t j = 0; j < dv; ++j) out.rnd[0][j] += 2 * square(kNu * dot * w.decay * w.u[static_cast<size_t>(j)]);
  }
  for (int64_t j = 0; j < dv; ++j) out.rnd[0][j] = std::sqrt(out.rnd[0][j]);
}

// norm(o) * w * silu(z) of one head into the core row.
void gated_norm(const GdnProblem& p, const RawGdn& w, Values& o, const double* z, const double* z_sigma, bool exact,
                double* value, double* sigma, double* rnd) {
  std::vector<double> again(o.value[0], o.value[0] + p.dv);
  if (!exact) normalise(again.data(), o.rnd[0], p.dv, 1.0 / p.dv, static_cast<double>(p.eps), nullptr, false);
  normalise(o.value[0], o.sigma[0], p.dv, 1.0 / p.dv, static_cast<double>(p.eps), nullptr, exact);
  for (int64_t j = 0; j < p.dv; ++j) {
    const double weight = static_cast<double>(w.norm[static_cast<size_t>(j)]), f = weight * silu(z[j]),
                 n = o.value[0][j];
    value[j] = n * f;
    if (exact) continue;
    sigma[j] = std::sqrt(square(f * o.sigma[0][j]) + square(n * weight * silu_slope(z[j]) * z_sigma[j]) +
                         square(12 * kU * value[j]));
    rnd[j] = std::fabs(f) * o.rnd[0][j];
  }
}

}  // namespace

GdnExpected gdn(const GdnProblem& problem, const RawGdn& weights, const Batch& batch, const TensorView& x,
                const TensorView& conv_state, const TensorView& state, const Options& options) {
  const GdnProblem& p = problem;
  const bool bf16 = p.activation == Activation::kBf16, exact = options.exact;
  const bool bf16_inner = bf16 && !exact && options.numerics.gdn_inner == Rounds::kBf16;
  const Values input = exact_values(read_all(x));
  const Values qkv = product(weights.qkv, input, exact), z = product(weights.z, input, exact),
               ba = product(weights.ba, input, exact);
  Values core(batch.rows, static_cast<int64_t>(p.value_heads) * p.dv);
  GdnExpected expected;
  for (const BatchSequence& s : batch.sequences) {
    const Values past = with_history(p, s, qkv, conv_state);
    const Values c = convolve(p, weights.conv, past, s.q_len, exact);
    Expected& conv = expected.conv.emplace_back(p.channels(), p.conv - 1, DType::kF32);
    for (int64_t ch = 0; ch < p.channels(); ++ch)
      for (int j = 0; j < p.conv - 1; ++j) {
        conv.value[static_cast<size_t>(ch * (p.conv - 1) + j)] = past.value[s.q_len + j][ch];
        conv.sys[static_cast<size_t>(ch * (p.conv - 1) + j)] = past.sigma[s.q_len + j][ch];
      }
    Expected& after = expected.state.emplace_back(static_cast<int64_t>(p.value_heads) * p.dk, p.dv, DType::kF32);
    after.shared = true;
    for (int h = 0; h < p.value_heads; ++h) {
      const int64_t key = static_cast<int64_t>(h / (p.value_heads / p.key_heads)) * p.dk,
                    keys = static_cast<int64_t>(p.key_heads) * p.dk;
      const int64_t value = 2 * keys + static_cast<int64_t>(h) * p.dv, out = static_cast<int64_t>(h) * p.dv;
      const auto columns = static_cast<size_t>(p.dv);
      State st{Matrix(p.dk, p.dv), std::vector<double>(columns), std::vector<double>(columns),
               std::vector<double>(columns)};
      const int64_t head_state = static_cast<int64_t>(p.dk) * p.dv;
      if (s.state_in >= 0)
        std::copy_n(state.as<float>() + (static_cast<int64_t>(s.state_in) * p.value_heads + h) * head_state, head_state,
                    st.s[0]);
      std::deque<Write> writes;
      for (int r = 0; r < s.q_len; ++r) {
        const int64_t row = s.first_row + r;
        const Inputs in{c.value[r] + key,
                        c.value[r] + keys + key,
                        c.value[r] + value,
                        c.sigma[r] + key,
                        c.sigma[r] + keys + key,
                        c.sigma[r] + value,
                        gates_of(p, weights, ba, row, h, exact)};
        Values o(1, p.dv);
        step(p, in, bf16_inner, exact, st, writes, o);
        gated_norm(p, weights, o, z.value[row] + out, z.sigma[row] + out, exact, core.value[row] + out,
                   core.sigma[row] + out, core.rnd[row] + out);
      }
      for (int64_t i = 0; i < p.dk; ++i)
        for (int64_t j = 0; j < p.dv; ++j) {
          const auto at = static_cast<size_t>((h * p.dk + i) * p.dv + j), column = static_cast<size_t>(j);
          after.value[at] = st.s[i][j];
          if (exact) continue;
          after.sys[at] = std::sqrt(st.variance[column]) + st.drift[column] + 2 * kU * std::fabs(st.s[i][j]);
          after.rnd[at] = std::sqrt(st.inner[column]);
        }
    }
  }
  if (bf16 && options.numerics.core_out == Rounds::kBf16) round_values(core);
  expected.partial = Expected(batch.rows, p.hidden, DType::kF32);
  expected.partial.shared = true;
  fill(expected.partial, product(weights.out, core, exact));
  return expected;
}

}  // namespace mettle::oracle

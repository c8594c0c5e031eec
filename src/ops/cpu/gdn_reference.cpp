// gdn, reference: up to 64 rows at a time: project, convolve, then the delta rule row by row on the float32 state. The
// state of a sequence is first brought from state_in to state_out and then lives there, so chunk borders are invisible.
#include <cstring>

#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/gdn.h"

namespace mettle {
namespace {

using reference::for_each;
using reference::kRows;
using reference::Rows;

struct Scratch {
  Rows x, qkv, z, ba;
  Rows conv;  // [rows, channels] after silu; q and k normalised in place
  Rows core;  // [rows, value_heads * dv]
  Rows read;  // [value_heads, dv]: S^T k, then u
};

Scratch carve(reference::Carver& c, const GdnProblem& p, int rows) {
  const int64_t values = static_cast<int64_t>(p.value_heads) * p.dv;
  Scratch s;
  s.x = take_rows(c, rows, p.hidden);
  s.qkv = take_rows(c, rows, p.channels());
  s.z = take_rows(c, rows, values);
  s.ba = take_rows(c, rows, 2 * p.value_heads);
  s.conv = take_rows(c, rows, p.channels());
  s.core = take_rows(c, rows, values);
  s.read = take_rows(c, p.value_heads, p.dv);
  return s;
}

// Slot state_out starts as a copy of state_in, or as zeros.
void bring_state(const TensorView& slots, const BatchSequence& s) {
  const size_t bytes = slots.bytes() / static_cast<size_t>(slots.shape[0]);
  uint8_t* to = slots.as<uint8_t>() + bytes * static_cast<size_t>(s.state_out);
  if (s.state_in < 0) {
    std::memset(to, 0, bytes);
  } else if (s.state_in != s.state_out) {
    std::memcpy(to, slots.as<uint8_t>() + bytes * static_cast<size_t>(s.state_in), bytes);
  }
}

// Rows [begin, end) of the piece belong to one sequence; history is its conv_state slot, oldest row first.
void convolve_channel(const GdnProblem& p, const FloatArray& taps, const Scratch& s, int begin, int end,
                      int64_t channel, float* history) {
  const int past = p.conv - 1;
  const float* tap = taps.data() + channel * p.conv;
  for (int i = begin; i < end; ++i) {
    const float now = s.qkv[i][channel];
    float sum = 0;
    for (int j = 0; j < past; ++j) sum += tap[j] * history[j];
    s.conv[i][channel] = reference::silu(sum + tap[past] * now);
    for (int j = 0; j + 1 < past; ++j) history[j] = history[j + 1];
    if (past > 0) history[past - 1] = now;
  }
}

// q and k of one row and key head: L2 norm, q times dk^-0.5.
void normalise(const GdnProblem& p, float* head, float scale) {
  double sum = 0;
  for (int i = 0; i < p.dk; ++i) sum += static_cast<double>(head[i]) * head[i];
  const float inverse = static_cast<float>(1 / std::sqrt(sum + 1e-6));
  for (int i = 0; i < p.dk; ++i) head[i] = head[i] * inverse * scale;
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One row of one value head: decay, read, write, read out, gated norm.
void step(const GdnArgs& a, const Scratch& s, int row, int head, float* state) {
  const GdnProblem& p = a.problem;
  const GdnWeights& w = *a.weights;
  const int key_head = head / (p.value_heads / p.key_heads);
  const float* q = s.conv[row] + key_head * p.dk;
  const float* k = q + static_cast<int64_t>(p.key_heads) * p.dk;
  const float* v = s.conv[row] + 2LL * p.key_heads * p.dk + static_cast<int64_t>(head) * p.dv;
  const auto index = static_cast<size_t>(head);
  const float beta = reference::sigmoid(s.ba[row][head]);
  const float g = -std::exp(w.a_log[index]) * softplus(s.ba[row][p.value_heads + head] + w.dt_bias[index]);
  const float decay = std::exp(g);
  float* u = s.read[head];
  float* out = s.core[row] + static_cast<int64_t>(head) * p.dv;
  std::fill_n(u, p.dv, 0.f);
  std::fill_n(out, p.dv, 0.f);
  for (int i = 0; i < p.dk; ++i) {
    float* line = state + static_cast<int64_t>(i) * p.dv;
    for (int j = 0; j < p.dv; ++j) {
      line[j] *= decay;
      u[j] += line[j] * k[i];
    }
  }
  for (int j = 0; j < p.dv; ++j) u[j] = beta * (v[j] - u[j]);
  for (int i = 0; i < p.dk; ++i) {
    float* line = state + static_cast<int64_t>(i) * p.dv;
    for (int j = 0; j < p.dv; ++j) {
      line[j] += k[i] * u[j];
      out[j] += line[j] * q[i];
    }
  }
  const float* z = s.z[row] + static_cast<int64_t>(head) * p.dv;
  const float scale = reference::inverse_rms(out, p.dv, p.eps);
  for (int j = 0; j < p.dv; ++j) out[j] = out[j] * scale * w.norm[static_cast<size_t>(j)] * reference::silu(z[j]);
  reference::round_if(p.activation == Activation::kBf16, out, p.dv);
}

// Rows [begin, end) of the piece that starts at row `first` of the batch, all of sequence q.
void run_sequence(const GdnArgs& a, const BatchSequence& q, int begin, int end, const Scratch& s, Stream& stream) {
  const GdnProblem& p = a.problem;
  float* history = a.conv_state.as<float>() + static_cast<int64_t>(q.state_out) * p.channels() * (p.conv - 1);
  for_each(stream, p.channels(), [&](int64_t channel) {
    convolve_channel(p, a.weights->conv, s, begin, end, channel, history + channel * (p.conv - 1));
  });
  const float q_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.dk)));
  for_each(stream, (end - begin) * 2LL * p.key_heads, [&](int64_t item) {
    const int64_t row = begin + item / (2 * p.key_heads), head = item % (2 * p.key_heads);
    normalise(p, s.conv[row] + head * p.dk, head < p.key_heads ? q_scale : 1.f);
  });
  const int64_t head_state = static_cast<int64_t>(p.dk) * p.dv;
  float* state = a.state.as<float>() + q.state_out * p.value_heads * head_state;
  for_each(stream, p.value_heads, [&](int64_t head) {
    for (int row = begin; row < end; ++row) step(a, s, row, static_cast<int>(head), state + head * head_state);
  });
}

void run(const Tactic&, const GdnArgs& a, Stream& stream) {
  const GdnProblem& p = a.problem;
  const Batch& batch = *a.batch;
  reference::Carver carver(a.ws);
  const Scratch s = carve(carver, p, std::min(batch.rows, kRows));
  for (const BatchSequence& q : batch.sequences) {
    bring_state(a.conv_state, q);
    bring_state(a.state, q);
  }
  size_t sequence = 0;
  for (int first = 0; first < batch.rows; first += kRows) {
    const int rows = std::min(kRows, batch.rows - first);
    reference::widen(a.x, first, rows, s.x);
    product(a.weights->qkv, s.x, s.qkv, rows, stream);
    product(a.weights->z, s.x, s.z, rows, stream);
    product(a.weights->ba, s.x, s.ba, rows, stream);
    for (; sequence < batch.sequences.size() && batch.sequences[sequence].first_row < first + rows; ++sequence) {
      const BatchSequence& q = batch.sequences[sequence];
      const int end = q.first_row + q.q_len;
      run_sequence(a, q, std::max(q.first_row - first, 0), std::min(end - first, rows), s, stream);
      if (end > first + rows) break;  // the rest of it is in the next piece
    }
    product(a.weights->out, s.core, Rows{a.partial.as<float>() + static_cast<int64_t>(first) * p.hidden, p.hidden},
            rows, stream);
  }
}

Verdict supports(const GdnProblem& p, const Device& device) {
  if (p.key_heads < 1 || p.value_heads % p.key_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported,
                  fmt::format("{} value heads, {} key heads", p.value_heads, p.key_heads), "a multiple");
  if (p.conv < 1) return refuse(VerdictCode::kShapeUnsupported, fmt::format("convolution of {}", p.conv), "1 or more");
  return reference::on_cpu(device);
}

}  // namespace

extern const Backend<GdnOp> gdn_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = supports,
    .tactics = [](const GdnProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const GdnProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, p, std::min(rows, kRows));
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

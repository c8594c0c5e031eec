// attention, reference: up to 64 rows at a time: project, append k and v, then every (row, head) walks its keys in
// blocks of 128 absolute positions with a running maximum, so chunk borders do not change a row's result.
#include <fmt/format.h>

#include "ops/attention.h"
#include "ops/cpu/reference_math.h"

namespace mettle {
namespace {

using reference::for_each;
using reference::kRows;
using reference::Rows;

constexpr int kKeys = 128;

struct Scratch {
  Rows x, qkv;
  Rows core;                    // [rows, heads * head_dim]: o, then o * sigmoid(gate)
  Rows cosines, sines;          // [rows, rotary_dim / 2]
  int32_t* sequence = nullptr;  // [rows] of the batch's sequences
};

Scratch carve(reference::Carver& c, const AttentionProblem& p, int rows) {
  Scratch s;
  s.x = take_rows(c, rows, p.hidden);
  s.qkv = take_rows(c, rows, p.qkv_rows());
  s.core = take_rows(c, rows, static_cast<int64_t>(p.heads) * p.head_dim);
  s.cosines = take_rows(c, rows, p.rotary_dim / 2);
  s.sines = take_rows(c, rows, p.rotary_dim / 2);
  s.sequence = c.take<int32_t>(rows);
  return s;
}

// In place: q/k norm, then rotation of the leading pairs (i, i + rotary/2).
void norm_and_rotate(const AttentionProblem& p, const FloatArray& weight, const float* cosines, const float* sines,
                     float* head) {
  if (p.qk_norm) {
    const float scale = reference::inverse_rms(head, p.head_dim, p.eps);
    for (int i = 0; i < p.head_dim; ++i)
      head[i] =
          head[i] * scale * (p.norm_plus_one ? 1.f + weight[static_cast<size_t>(i)] : weight[static_cast<size_t>(i)]);
  }
  const int half = p.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

// First value of a cached row.
int64_t cache_at(const AttentionProblem& p, const BatchSequence& s, int64_t position, int kv_head) {
  const int64_t block = s.block_table[position / p.block_size];
  return ((block * p.block_size + position % p.block_size) * p.kv_heads + kv_head) * p.head_dim;
}

void store(const TensorView& cache, int64_t at, const float* from, int count, float scale) {
  for (int i = 0; i < count; ++i) {
    if (cache.dtype == DType::kF32) {
      cache.as<float>()[at + i] = from[i];
    } else if (cache.dtype == DType::kE4M3) {
      cache.as<uint8_t>()[at + i] = float_to_e4m3(from[i] / scale);
    } else {
      cache.as<uint16_t>()[at + i] = float_to_bf16(from[i]);
    }
  }
}

// Without the cache's scale, which multiplies the sums.
float load(const TensorView& cache, int64_t at) {
  if (cache.dtype == DType::kE4M3) return e4m3_to_float(cache.as<uint8_t>()[at]);
  return cache.dtype == DType::kF32 ? cache.as<float>()[at] : bf16_to_float(cache.as<uint16_t>()[at]);
}

template <class T, class Widen>
float dot(const float* q, const T* k, int count, Widen widen) {
  float parts[16] = {};
  int i = 0;
  for (; i + 16 <= count; i += 16)
    for (int j = 0; j < 16; ++j) parts[j] += q[i + j] * widen(k[i + j]);
  for (; i < count; ++i) parts[i % 16] += q[i] * widen(k[i]);
  float sum = 0;
  for (const float part : parts) sum += part;
  return sum;
}

float score(const TensorView& cache, int64_t at, const float* q, int count) {
  if (cache.dtype == DType::kF32) return reference::dot(q, cache.as<float>() + at, count);
  if (cache.dtype == DType::kE4M3) return dot(q, cache.as<uint8_t>() + at, count, e4m3_to_float);
  return dot(q, cache.as<uint16_t>() + at, count, bf16_to_float);
}

void attend(const AttentionArgs& a, const BatchSequence& s, int64_t keys, int kv_head, const float* q, float* out) {
  const AttentionProblem& p = a.problem;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim))) * a.weights->k_scale;
  float top = -INFINITY, sum = 0, probability[kKeys];
  std::fill_n(out, p.head_dim, 0.f);
  for (int64_t begin = 0; begin < keys; begin += kKeys) {
    const int count = static_cast<int>(std::min<int64_t>(kKeys, keys - begin));
    float best = top;
    for (int j = 0; j < count; ++j) {
      probability[j] = score(a.k_cache, cache_at(p, s, begin + j, kv_head), q, p.head_dim) * scale;
      best = std::max(best, probability[j]);
    }
    const float keep = begin == 0 ? 0.f : std::exp(top - best);
    top = best;
    sum *= keep;
    for (int d = 0; d < p.head_dim; ++d) out[d] *= keep;
    for (int j = 0; j < count; ++j) {
      const float e = std::exp(probability[j] - top);
      sum += e;
      const int64_t at = cache_at(p, s, begin + j, kv_head);
      for (int d = 0; d < p.head_dim; ++d) out[d] += e * load(a.v_cache, at + d);
    }
  }
  for (int d = 0; d < p.head_dim; ++d) out[d] = out[d] / sum * a.weights->v_scale;
}

void run_rows(const AttentionArgs& a, int first, int rows, const Scratch& s, Stream& stream) {
  const AttentionProblem& p = a.problem;
  const AttentionWeights& w = *a.weights;
  const int stride = p.gate ? 2 * p.head_dim : p.head_dim;  // of the query heads in a qkv row
  const int64_t keys_at = static_cast<int64_t>(p.heads) * stride, values_at = keys_at + p.kv_heads * p.head_dim;
  reference::widen(a.x, first, rows, s.x);
  product(w.qkv, s.x, s.qkv, rows, stream);
  const auto sequence_of = [&](int64_t i) -> const BatchSequence& {
    return a.batch->sequences[static_cast<size_t>(s.sequence[i])];
  };
  const auto position_of = [&](int64_t i) {
    const BatchSequence& q = sequence_of(i);
    return static_cast<int64_t>(q.ctx_len) + first + i - q.first_row;
  };
  for_each(stream, rows, [&](int64_t i) {
    const int64_t position = position_of(i);
    for (int j = 0; j < p.rotary_dim / 2; ++j) {
      const float angle = static_cast<float>(position) * w.inv_freq[static_cast<size_t>(j)];
      s.cosines[i][j] = static_cast<float>(std::cos(static_cast<double>(angle)));
      s.sines[i][j] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
    for (int h = 0; h < p.heads; ++h) norm_and_rotate(p, w.q_norm, s.cosines[i], s.sines[i], s.qkv[i] + h * stride);
    for (int h = 0; h < p.kv_heads; ++h) {
      float* k = s.qkv[i] + keys_at + h * p.head_dim;
      norm_and_rotate(p, w.k_norm, s.cosines[i], s.sines[i], k);
      const int64_t at = cache_at(p, sequence_of(i), position, h);
      store(a.k_cache, at, k, p.head_dim, w.k_scale);
      store(a.v_cache, at, s.qkv[i] + values_at + h * p.head_dim, p.head_dim, w.v_scale);
    }
  });
  for_each(stream, static_cast<int64_t>(rows) * p.heads, [&](int64_t item) {
    const int64_t i = item / p.heads;
    const int h = static_cast<int>(item % p.heads);
    const float* q = s.qkv[i] + h * stride;
    float* out = s.core[i] + h * p.head_dim;
    attend(a, sequence_of(i), position_of(i) + 1, h / (p.heads / p.kv_heads), q, out);
    if (p.gate)
      for (int d = 0; d < p.head_dim; ++d) out[d] *= reference::sigmoid(q[p.head_dim + d]);
    reference::round_if(p.activation == Activation::kBf16, out, p.head_dim);
  });
  product(w.out, s.core, Rows{a.partial.as<float>() + static_cast<int64_t>(first) * p.hidden, p.hidden}, rows, stream);
}

void run(const Tactic&, const AttentionArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  const Scratch scratch = carve(carver, a.problem, std::min(a.batch->rows, kRows));
  size_t sequence = 0;
  for (int first = 0; first < a.batch->rows; first += kRows) {
    const int rows = std::min(kRows, a.batch->rows - first);
    for (int i = 0; i < rows; ++i) {
      while (first + i >= a.batch->sequences[sequence].first_row + a.batch->sequences[sequence].q_len) ++sequence;
      scratch.sequence[i] = static_cast<int32_t>(sequence);
    }
    run_rows(a, first, rows, scratch, stream);
  }
}

Verdict supports(const AttentionProblem& p, const Device& device) {
  if (p.kv_heads < 1 || p.heads % p.kv_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} query heads, {} kv heads", p.heads, p.kv_heads),
                  "a multiple");
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > p.head_dim)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("rotary {} of {}", p.rotary_dim, p.head_dim),
                  "even, at most the head");
  return reference::on_cpu(device);
}

}  // namespace

extern const Backend<AttentionOp> attention_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = supports,
    .tactics = [](const AttentionProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const AttentionProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, p, std::min(rows, kRows));
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle

// Element by element functions. Plain loops that the compiler vectorises for the instruction set of the including
// source; every operation is a rounded IEEE one (no contraction), so lanes and remainders agree bit for bit.
#pragma once
#include <cstdint>
#include <cstring>

namespace mettle::cpu {
namespace {

inline float as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint32_t as_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

// Within 2 units in the last place. exp(0) is 1; below -103.98 zero, above 88.73 infinity; NaN stays NaN.
inline float exp_of(float x) {
  x = x < -104.f ? -104.f : x;
  x = x > 89.f ? 89.f : x;
  const float shifted = x * 1.44269504f + 12582912.f;  // 1.5 * 2^23: the integer stands in the low bits
  const float n = shifted - 12582912.f;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts; the first product is exact
  float p = 1.98756915e-4f;
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666657e-1f;
  p = p * r + 5.00000012e-1f;
  p = (p * r) * r + r + 1.f;
  // 2^n in two factors: n may be -150..128.
  const int32_t i = static_cast<int32_t>(as_bits(shifted) - as_bits(12582912.f));
  const int32_t half = i >> 1;
  return p * as_float(static_cast<uint32_t>(half + 127) << 23) * as_float(static_cast<uint32_t>(i - half + 127) << 23);
}

// Exactly 1 from 18 on, exactly 0 below -89.
inline float sigmoid_of(float x) { return 1.f / (1.f + exp_of(-x)); }
inline float silu_of(float x) { return x / (1.f + exp_of(-x)); }

inline uint32_t bf16_of(float f) {
  const uint32_t bits = as_bits(f);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded;
}

void widen(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = as_float(static_cast<uint32_t>(in[i]) << 16);
}

void silu_mul(const float* __restrict gate, const float* __restrict up, void* h, int64_t n, bool round_bf16,
              bool as_bf16) {
  if (as_bf16) {
    auto* __restrict out = static_cast<uint16_t*>(h);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>(bf16_of(silu_of(gate[i]) * up[i]));
  } else if (round_bf16) {
    auto* __restrict out = static_cast<float*>(h);
    for (int64_t i = 0; i < n; ++i) out[i] = as_float(bf16_of(silu_of(gate[i]) * up[i]) << 16);
  } else {
    auto* __restrict out = static_cast<float*>(h);
    for (int64_t i = 0; i < n; ++i) out[i] = silu_of(gate[i]) * up[i];
  }
}

void round_to(const float* __restrict in, void* to, int64_t n, bool round_bf16, bool as_bf16) {
  if (as_bf16) {
    auto* __restrict out = static_cast<uint16_t*>(to);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>(bf16_of(in[i]));
  } else if (round_bf16) {
    auto* __restrict out = static_cast<float*>(to);
    for (int64_t i = 0; i < n; ++i) out[i] = as_float(bf16_of(in[i]) << 16);
  } else {
    std::memcpy(to, in, static_cast<size_t>(n) * sizeof(float));
  }
}

void add(float* __restrict to, const float* __restrict from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// in and out may be the same.
void normed(const float* in, float scale, const float* __restrict weight, float one, void* to, int64_t n,
            bool as_bf16) {
  if (as_bf16) {
    auto* out = static_cast<uint16_t*>(to);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>(bf16_of(in[i] * scale * (one + weight[i])));
  } else {
    auto* out = static_cast<float*>(to);
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale * (one + weight[i]);
  }
}

void scaled(const float* __restrict in, float factor, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] * factor;
}

void rotate(float* __restrict head, const float* __restrict cosines, const float* __restrict sines, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float x = head[i], y = head[i + half];
    head[i] = x * cosines[i] - y * sines[i];
    head[i + half] = y * cosines[i] + x * sines[i];
  }
}

void sigmoid(const float* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = sigmoid_of(in[i]);
}
void silu(const float* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = silu_of(in[i]);
}
void exp_all(const float* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = exp_of(in[i]);
}

// Sums run in 16 lanes, then lane 0..15 in pairs: the same order on every instruction set but for fused rounding.
inline float sum_lanes(const float* lanes) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

bool max_finite(const float* in, int64_t n, float* most) {
  float top = in[0];
  uint32_t worst = 0;  // exponent bits of infinity and NaN are the largest
  for (int64_t i = 0; i < n; ++i) top = in[i] > top ? in[i] : top;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t size = as_bits(in[i]) & 0x7FFFFFFFu;
    worst = size > worst ? size : worst;
  }
  *most = top;
  return worst < 0x7F800000u;
}

double exp_sum(const float* in, float most, float factor, float* out, int64_t n) {
  constexpr int64_t kPiece = 1024;
  alignas(64) float values[kPiece], lanes[16];
  double total = 0;
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = n - at < kPiece ? n - at : kPiece;
    for (int64_t i = 0; i < count; ++i) values[i] = exp_of((in[at + i] - most) * factor);
    for (int64_t i = count; i < (count + 15) / 16 * 16; ++i) values[i] = 0;
    Vec sum = Vec::zero();
    for (int64_t i = 0; i < count; i += 16) sum = Vec::add(sum, Vec::load(values + i));
    sum.store(lanes);
    total += static_cast<double>(sum_lanes(lanes));
    if (out != nullptr) std::memcpy(out + at, values, static_cast<size_t>(count) * sizeof(float));
  }
  return total;
}

float dot(const float* a, const float* b, int64_t n) {
  Vec sum = Vec::zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum = Vec::fma(Vec::load(a + i), Vec::load(b + i), sum);
  alignas(64) float lanes[16];
  sum.store(lanes);
  for (; i < n; ++i) lanes[i % 16] += a[i] * b[i];
  return sum_lanes(lanes);
}

}  // namespace
}  // namespace mettle::cpu

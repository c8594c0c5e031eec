#include "ops/cpu/reference_math.h"

#include <cstring>

namespace mettle::reference {
namespace {

constexpr int64_t kTile = 16;
constexpr int64_t kScaleBlock = 128;
constexpr int64_t kStep = 128;  // columns decoded at a time: 8 KiB of floats on the stack, one block scale of fp8_block

// out[k][16] for `count` columns from `begin`; what element() says, without a check per element.
void decode(const PackedMatrix& w, int64_t tile, int64_t begin, int64_t count, float* out) {
  const uint8_t* data = w.data + tile * w.tile_bytes();
  switch (w.payload) {
    case Payload::kNvfp4:
      for (int64_t k = 0; k < count; k += 16) {
        const int64_t group = (begin + k) / 16;
        float scale[kTile];
        for (int64_t r = 0; r < kTile; ++r) scale[r] = e4m3_to_float(w.scales[tile * w.k_padded + group * kTile + r]);
        for (int64_t half = 0; half < 2; ++half)
          for (int64_t r = 0; r < kTile; ++r) {
            uint32_t codes;
            std::memcpy(&codes, data + group * 128 + half * 64 + r * 4, sizeof codes);
            float* to = out + (k + half * 8) * kTile + r;
            for (int64_t i = 0; i < 4; ++i) {
              to[2 * i * kTile] = kE2M1[codes >> (4 * i) & 15] * scale[r];
              to[(2 * i + 1) * kTile] = kE2M1[codes >> (16 + 4 * i) & 15] * scale[r];
            }
          }
      }
      return;
    case Payload::kF32:
      std::memcpy(out, reinterpret_cast<const float*>(data) + begin * kTile,
                  static_cast<size_t>(count * kTile) * sizeof(float));
      return;
    case Payload::kBf16: {
      const auto* from = reinterpret_cast<const uint16_t*>(data);
      for (int64_t k = 0; k < count; ++k)
        for (int64_t r = 0; r < kTile; ++r)
          out[k * kTile + r] = bf16_to_float(from[(begin + k) / 2 * 2 * kTile + r * 2 + (begin + k) % 2]);
      if (w.k_scale == nullptr) return;
      const int64_t k_blocks = (w.cols + kScaleBlock - 1) / kScaleBlock;
      const float* scale = w.k_scale + (tile * k_blocks + begin / kScaleBlock) * kTile;
      for (int64_t k = 0; k < count; ++k)
        for (int64_t r = 0; r < kTile; ++r) out[k * kTile + r] *= scale[r];
      return;
    }
    case Payload::kFp8:
      return;  // p64 alone
  }
}

// sums[16] += x[k] * weights[k][16], k ascending.
void accumulate(const float* x, const float* weights, int64_t count, float* sums) {
  float s[kTile];
  for (int64_t r = 0; r < kTile; ++r) s[r] = sums[r];
  for (int64_t k = 0; k < count; ++k)
    for (int64_t r = 0; r < kTile; ++r) s[r] += x[k] * weights[k * kTile + r];
  for (int64_t r = 0; r < kTile; ++r) sums[r] = s[r];
}

}  // namespace

void widen(const TensorView& x, int64_t first, int64_t count, const Rows& out) {
  for (int64_t i = 0; i < count; ++i) {
    if (x.dtype == DType::kF32) {
      std::memcpy(out[i], x.as<float>() + (first + i) * out.width, static_cast<size_t>(out.width) * sizeof(float));
    } else {
      const uint16_t* from = x.as<uint16_t>() + (first + i) * out.width;
      for (int64_t k = 0; k < out.width; ++k) out[i][k] = bf16_to_float(from[k]);
    }
  }
}

void round_if(bool to_bf16, float* values, int64_t count) {
  if (!to_bf16) return;
  for (int64_t i = 0; i < count; ++i) values[i] = bf16_to_float(float_to_bf16(values[i]));
}

void product_tile(const PackedMatrix& w, int64_t tile, std::span<const float* const> x, std::span<float* const> y) {
  float weights[kStep * kTile];
  float sums[kRows][kTile];
  const int64_t rows = std::min(kTile, w.rows - tile * kTile);
  for (size_t first = 0; first < x.size(); first += kRows) {
    const size_t count = std::min<size_t>(kRows, x.size() - first);
    std::memset(sums, 0, sizeof sums);
    for (int64_t k = 0; k < w.cols; k += kStep) {
      const int64_t columns = std::min(kStep, w.cols - k);
      decode(w, tile, k, columns, weights);
      for (size_t i = 0; i < count; ++i) accumulate(x[first + i] + k, weights, columns, sums[i]);
    }
    for (size_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < rows; ++r) y[first + i][tile * kTile + r] = sums[i][r] * w.row_scale[tile * kTile + r];
  }
}

void product(const PackedMatrix& w, const Rows& x, const Rows& y, int64_t count, Stream& stream) {
  const float* from[kRows];
  float* to[kRows];
  for (int64_t i = 0; i < count; ++i) {
    from[i] = x[i];
    to[i] = y[i];
  }
  const auto n = static_cast<size_t>(count);
  for_each(stream, w.tiles, [&](int64_t tile) { product_tile(w, tile, {from, n}, {to, n}); });
}

float dot(const float* a, const float* b, int64_t count) {
  float parts[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int64_t j = 0; j < 16; ++j) parts[j] += a[i + j] * b[i + j];
  for (; i < count; ++i) parts[i % 16] += a[i] * b[i];
  float sum = 0;
  for (const float part : parts) sum += part;
  return sum;
}

float inverse_rms(const float* x, int64_t count, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(1 / std::sqrt(sum / static_cast<double>(count) + static_cast<double>(eps)));
}

Verdict on_cpu(const Device& device) {
  if (device.name == "cpu") return {};
  return refuse(VerdictCode::kWrongSm, device.name, "cpu", "it is plain host code", "choose a backend of this device");
}

std::vector<Tactic> plain_tactic() { return {{"plain", Isa::kScalar, 0}}; }

}  // namespace mettle::reference

// 16 floats without any instruction set beyond the baseline.
#pragma once
#include <cstdint>
#include <cstring>

namespace mettle::cpu {
namespace {

struct Vec {
  float v[16];
  static constexpr int kRows = 2;  // rows of a gemv block
  static constexpr int kPanelRows = 4, kPanelTiles = 1;

  struct Bits {
    uint32_t v[16];
  };
  static Vec zero() { return {}; }
  static Vec set(float x) {
    Vec r;
    for (float& e : r.v) e = x;
    return r;
  }
  static Vec load(const float* p) {
    Vec r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  void store(float* p) const { std::memcpy(p, v, sizeof v); }
  static Vec widen(const uint16_t* p) {
    uint32_t b[16];
    for (int i = 0; i < 16; ++i) b[i] = static_cast<uint32_t>(p[i]) << 16;
    Vec r;
    std::memcpy(r.v, b, sizeof r.v);
    return r;
  }
  static Vec fma(Vec a, Vec b, Vec c) {
    for (int i = 0; i < 16; ++i) c.v[i] += a.v[i] * b.v[i];
    return c;
  }
  static Vec mul(Vec a, Vec b) {
    for (int i = 0; i < 16; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static Vec add(Vec a, Vec b) {
    for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
    return a;
  }
  static Vec max(Vec a, Vec b) {
    for (int i = 0; i < 16; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
  }

  static Bits load_bits(const uint8_t* p) {
    Bits r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
  }
  // The codes at bits 4 * nibble of each dword.
  static Vec e2m1(const Bits& b, int nibble) {
    static constexpr float kValues[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                          -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
    Vec r;
    for (int i = 0; i < 16; ++i) r.v[i] = kValues[b.v[i] >> (4 * nibble) & 15];
    return r;
  }
  static Vec bf16_low(const Bits& b) {
    Bits t;
    for (int i = 0; i < 16; ++i) t.v[i] = b.v[i] << 16;
    Vec r;
    std::memcpy(r.v, t.v, sizeof r.v);
    return r;
  }
  static Vec bf16_high(const Bits& b) {
    Bits t;
    for (int i = 0; i < 16; ++i) t.v[i] = b.v[i] & 0xFFFF0000u;
    Vec r;
    std::memcpy(r.v, t.v, sizeof r.v);
    return r;
  }
  // 16 e4m3 bytes times 2^-8: the exponent moves into a float by a shift, which scales by 2^-120.
  static Vec e4m3(const uint8_t* p) {
    Vec r;
    for (int i = 0; i < 16; ++i) {
      const uint32_t bits = static_cast<uint32_t>(p[i] & 0x80) << 24 | static_cast<uint32_t>(p[i] & 0x7F) << 20;
      float f;
      std::memcpy(&f, &bits, 4);
      r.v[i] = f * 0x1p112f;
    }
    return r;
  }
};

// out[i * 16 + j] = dword i of the 64 bytes at rows[j] + offset.
inline void transpose16x16(const uint8_t* const* rows, int64_t offset, uint32_t* out) {
  for (int j = 0; j < 16; ++j)
    for (int i = 0; i < 16; ++i) std::memcpy(out + i * 16 + j, rows[j] + offset + i * 4, 4);
}

}  // namespace
}  // namespace mettle::cpu

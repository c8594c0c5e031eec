// E4M3 codes of the KV cache: what CPU kernels write and what GPU kernels read, code by code.
#include "ops/cuda/device/cache_codes.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/cpu/product.h"

namespace mettle {
namespace {

float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(CacheCodes, EveryCodeIsWidenedInEveryPlaceOfAWord) {
  std::mt19937 random(5);
  for (uint32_t code = 0; code < 256; ++code)
    for (int place = 0; place < 4; ++place) {
      uint32_t w = random() & 0x3F3F3F3Fu;
      w = (w & ~(0xFFu << 8 * place)) | code << 8 * place;
      uint32_t pair[2];
      cuda::widen_codes_with_nan(w, pair);
      EXPECT_EQ(cuda::holds_nan(w) != 0, (code & 0x7F) == 0x7F) << code;
      for (int i = 0; i < 4; ++i) {
        const float got = as_float(pair[i / 2] >> 16 * (i % 2) << 16),
                    want = e4m3_to_float(static_cast<uint8_t>(w >> 8 * i));
        if (std::isnan(want))
          EXPECT_TRUE(std::isnan(got)) << code << " at " << i;
        else
          EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << code << " at " << i;
      }
      if ((code & 0x7F) == 0x7F) continue;
      uint32_t quick[2];
      cuda::widen_codes(w, quick);
      EXPECT_EQ(quick[0], pair[0]);
      EXPECT_EQ(quick[1], pair[1]);
    }
}

TEST(CacheCodes, EveryInstructionSetWritesTheSameCodes) {
  std::vector<float> values = {0.f,  -0.f,     448,       -448,     449,       464,     1e30f, INFINITY, -INFINITY, NAN,
                               -NAN, 0x1p-10f, 0x1.8p-9f, -0x1p-9f, 0x1.ep-7f, 0x1p-6f, 17.f,  18.f,     -19.f};
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 100'003; ++i) values.push_back(std::ldexp(normal(random), static_cast<int>(random() % 24) - 12));
  std::vector<uint8_t> want;
  const float scale = 0.37f;
  for (const float v : values) want.push_back(float_to_e4m3(v / scale));
  for (const Isa isa : this_cpu().isas) {
    std::vector<uint8_t> got(values.size());
    cpu::kernels_of(isa).to_e4m3(values.data(), scale, got.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << name_of(isa) << " of " << values[i];
  }
}

}  // namespace
}  // namespace mettle

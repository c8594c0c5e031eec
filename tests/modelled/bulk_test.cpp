// Products by product_bulk.cu and gdn's with them, as they stand in src/ops/cuda, on a CPU (block.h), beside plain
// ones.
#include <gtest/gtest.h>

#include <random>

#include "cuda_runtime.h"
#include "ops/cpu/reference_math.h"
#include "ops/cuda/gdn_bulk.h"
#include "ops/packed.h"
#include "p64_product.h"

namespace mettle {
namespace cuda {

void model_bulk_memory();

}  // namespace cuda

namespace {

uint16_t bf16(float x) { return static_cast<uint16_t>(__float_as_uint(x) >> 16); }

// Small whole numbers, scaled by powers of two: every sum is exact, so whatever is not equal is wrong.
class Matrix {
 public:
  Matrix(WeightFormat format, int rows, int cols, unsigned seed) : scale_(static_cast<size_t>(rows), 1.f) {
    std::mt19937 random(seed);
    constexpr uint8_t kCodes[] = {0x00, 0x38, 0x40, 0x44, 0xB8, 0xC0};  // 0, 1, 2, 3, -1, -2
    const int bytes = format == WeightFormat::kFp8 ? 1 : 2;
    data_.resize(static_cast<size_t>(rows * cols * bytes));
    for (int i = 0; i < rows * cols; ++i) {
      if (bytes == 1) {
        data_[static_cast<size_t>(i)] = kCodes[random() % 6];
      } else {
        const uint16_t value = bf16(static_cast<float>(static_cast<int>(random() % 7) - 3));
        std::memcpy(&data_[static_cast<size_t>(2 * i)], &value, 2);
      }
    }
    for (size_t r = 0; r < scale_.size(); ++r) scale_[r] = r % 3 == 0 ? 0.5f : r % 3 == 1 ? 1.f : 2.f;
    RawMatrix raw;
    raw.format = format;
    raw.rows = rows, raw.cols = cols;
    raw.data = data_.data();
    raw.row_bytes = cols * bytes;
    if (bytes == 1) raw.row_scale = scale_.data();
    packed = pack_p64({raw});
  }
  PackedMatrix packed;

 private:
  std::vector<uint8_t> data_;
  std::vector<float> scale_;
};

std::vector<uint16_t> whole_numbers(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> x(static_cast<size_t>(count));
  for (uint16_t& v : x) v = bf16(static_cast<float>(static_cast<int>(random() % 9) - 4));
  return x;
}

std::vector<float> plain(const PackedMatrix& w, const std::vector<uint16_t>& x, int rows) {
  std::vector<float> y(static_cast<size_t>(rows * w.rows));
  modelled::p64_product(w, x.data(), rows, y.data());
  return y;
}

struct Ordered {
  std::vector<uint8_t> memory;
  uint8_t* at = nullptr;
  explicit Ordered(int64_t bytes) : memory(static_cast<size_t>(bytes + 256), 0xFF) {
    at = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  }
};

void compare(WeightFormat format, int rows, int first_rows, int second_rows, int cols, int splits, int most_rows) {
  SCOPED_TRACE(std::to_string(rows) + " rows, columns " + std::to_string(cols) + ", splits " + std::to_string(splits));
  const Matrix first(format, first_rows, cols, 1), second(format, second_rows, cols, 2);
  const std::vector<uint16_t> x = whole_numbers(rows * cols, 3);
  const cuda::P64View view = cuda::view_of(first.packed);
  const int tiles_k = cuda::bulk_tiles_k(view);
  const Ordered ordered(cuda::bulk_bytes(rows, tiles_k));
  std::vector<float> parts(static_cast<size_t>(splits * rows * first_rows), NAN), y(parts.size(), NAN);
  std::vector<float> beside(static_cast<size_t>(splits * rows * second_rows), NAN);
  cuda::bulk_order(x.data(), rows, cols, tiles_k, ordered.at, nullptr);
  cuda::bulk_products({.first = view,
                       .second = cuda::view_of(second.packed),
                       .first_y = parts.data(),
                       .second_y = beside.data(),
                       .x = ordered.at,
                       .rows = rows,
                       .splits = splits,
                       .most_rows = most_rows},
                      nullptr);
  y.resize(static_cast<size_t>(rows * first_rows));
  cuda::bulk_sum(parts.data(), splits, rows * first_rows, y.data(), nullptr);
  EXPECT_EQ(y, plain(first.packed, x, rows));
  y.resize(static_cast<size_t>(rows * second_rows));
  cuda::bulk_sum(beside.data(), splits, rows * second_rows, y.data(), nullptr);
  EXPECT_EQ(y, plain(second.packed, x, rows));
}

TEST(ModelledBulk, ProductsAreThePlainOnes) {
  cuda::model_bulk_memory();
  compare(WeightFormat::kFp8, 17, 144, 16, 272, 1, 256);
  compare(WeightFormat::kFp8, 64, 48, 32, 1024, 3, 256);
  compare(WeightFormat::kFp8, 65, 32, 16, 2560, 2, 256);
  compare(WeightFormat::kFp8, 130, 32, 160, 528, 2, 128);
  compare(WeightFormat::kFp8, 131, 16, 16, 1536, 1, 256);
  compare(WeightFormat::kBf16, 40, 16, 36, 144, 2, 256);
}

TEST(ModelledBulk, GdnsProductsAreThePlainOnes) {
  cuda::model_bulk_memory();
  const GdnProblem p{.hidden = 272,
                     .key_heads = 1,
                     .value_heads = 2,
                     .dk = 64,
                     .dv = 64,
                     .in_format = WeightFormat::kFp8,
                     .out_format = WeightFormat::kFp8};
  ASSERT_TRUE(cuda::gdn_bulk_takes(p));
  const int values = p.value_heads * p.dv, channels = static_cast<int>(p.channels());
  const Matrix qkv(WeightFormat::kFp8, channels, p.hidden, 1), z(WeightFormat::kFp8, values, p.hidden, 2);
  const Matrix ba(WeightFormat::kBf16, 2 * p.value_heads, p.hidden, 3), out(WeightFormat::kFp8, p.hidden, values, 4);
  GdnWeights w;
  w.qkv = qkv.packed, w.z = z.packed, w.ba = ba.packed, w.out = out.packed;
  for (const int rows : {17, 33, 70, 150}) {
    SCOPED_TRACE(rows);
    reference::Carver count({});
    cuda::gdn_scratch(count, p, rows);
    cuda::gdn_bulk_scratch(count, p, rows);
    const Ordered memory(static_cast<int64_t>(count.used()));
    reference::Carver carver({memory.at, count.used()});
    cuda::GdnRecurrent a = cuda::gdn_scratch(carver, p, rows);
    const cuda::BulkScratch bulk = cuda::gdn_bulk_scratch(carver, p, rows);
    a.rows = a.sequences = rows;
    a.key_heads = p.key_heads, a.value_heads = p.value_heads, a.dk = p.dk, a.dv = p.dv;
    ASSERT_TRUE(cuda::gdn_bulk_takes(a));
    const std::vector<uint16_t> x = whole_numbers(rows * p.hidden, 5), core = whole_numbers(rows * values, 6);
    cuda::gdn_bulk_project(a, bulk, w, x.data(), nullptr);
    const auto of = [](const float* y, int n) { return std::vector<float>(y, y + n); };
    EXPECT_EQ(of(a.qkv, rows * channels), plain(w.qkv, x, rows));
    EXPECT_EQ(of(a.z, rows * values), plain(w.z, x, rows));
    EXPECT_EQ(of(a.ba, rows * 2 * p.value_heads), plain(w.ba, x, rows));
    for (int i = 0; i < cuda::gdn_tickets(a); ++i) ASSERT_EQ(a.tickets[i], 0);
    std::copy(core.begin(), core.end(), a.core);
    std::vector<float> partial(static_cast<size_t>(rows * p.hidden), NAN);
    cuda::bulk_product(cuda::view_of(w.out), a.core, rows, bulk, partial.data(), nullptr);
    EXPECT_EQ(partial, plain(w.out, core, rows));
  }
}

}  // namespace
}  // namespace mettle

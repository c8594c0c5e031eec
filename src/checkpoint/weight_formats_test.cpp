// Every format a checkpoint may hold, read back weight by weight against the formula; what is refused; what is counted.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "checkpoint/toy_checkpoint.h"
#include "checkpoint/weight_source.h"

namespace mettle {
namespace {

using nlohmann::json;

std::string random_bytes(std::mt19937& random, int64_t count, int most = 255) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>(random() % static_cast<unsigned>(most + 1));
  return bytes;
}

// A module in one of the formats and, beside it, what each weight must be.
struct Written {
  int64_t rows, cols;
  std::vector<double> values;
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
};

double code_at(const std::string& packed, int64_t i) {
  const auto byte = static_cast<uint8_t>(packed[static_cast<size_t>(i / 2)]);
  return kE2M1[i % 2 == 0 ? byte & 15 : byte >> 4];
}

double e4m3_at(const std::string& bytes, int64_t i) {
  return e4m3_to_float(static_cast<uint8_t>(bytes[static_cast<size_t>(i)]));
}

class Toy {
 public:
  explicit Toy(unsigned seed = 1) : random(seed) {}

  Written nvfp4(const std::string& module, int64_t rows, int64_t cols, float global, bool packed = false) {
    const std::string codes = random_bytes(random, rows * cols / 2),
                      scales = random_bytes(random, rows * cols / 16, 0x7E);
    file.add(module + (packed ? ".weight_packed" : ".weight"), "U8", {rows, cols / 2}, codes);
    file.add(module + ".weight_scale", "F8_E4M3", {rows, cols / 16}, scales);
    if (packed)
      file.add_f32(module + ".weight_global_scale", {1}, {1 / global});
    else
      file.add_f32(module + ".weight_scale_2", {}, {global});
    Written w{rows, cols, {}};
    const double g = packed ? 1.f / (1 / global) : global;
    for (int64_t i = 0; i < rows * cols; ++i) w.values.push_back(code_at(codes, i) * e4m3_at(scales, i / 16) * g);
    return w;
  }

  // per: rows that share a scale (rows: one scale for all).
  Written fp8(const std::string& module, int64_t rows, int64_t cols, bool per_row) {
    const std::string codes = e4m3_codes(rows * cols);
    std::vector<float> scales;
    for (int64_t i = 0; i < (per_row ? rows : 1); ++i) scales.push_back(0.001f * static_cast<float>(i + 1));
    file.add(module + ".weight", "F8_E4M3", {rows, cols}, codes);
    if (per_row)
      file.add_bf16(module + ".weight_scale", {rows, 1}, scales);
    else
      file.add_f32(module + ".weight_scale", {}, scales);
    Written w{rows, cols, {}};
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float s = per_row ? bf16_to_float(float_to_bf16(scales[static_cast<size_t>(i / cols)])) : scales[0];
      w.values.push_back(e4m3_at(codes, i) * s);
    }
    return w;
  }

  Written fp8_block(const std::string& module, int64_t rows, int64_t cols,
                    const std::string& suffix = ".weight_scale_inv") {
    const std::string codes = e4m3_codes(rows * cols);
    const int64_t down = (rows + 127) / 128, across = (cols + 127) / 128;
    std::vector<float> scales;
    for (int64_t i = 0; i < down * across; ++i) scales.push_back(0.01f * static_cast<float>(i + 1));
    file.add(module + ".weight", "F8_E4M3", {rows, cols}, codes);
    file.add_f32(module + suffix, {down, across}, scales);
    Written w{rows, cols, {}};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        w.values.push_back(e4m3_at(codes, r * cols + c) * scales[static_cast<size_t>(r / 128 * across + c / 128)]);
    return w;
  }

  Written bf16(const std::string& module, int64_t rows, int64_t cols) {
    Written w{rows, cols, {}};
    std::vector<float> values;
    for (int64_t i = 0; i < rows * cols; ++i) {
      values.push_back(static_cast<float>(static_cast<int>(random() % 257) - 128) / 64);
      w.values.push_back(values.back());
    }
    file.add_bf16(module + ".weight", {rows, cols}, values);
    return w;
  }

  std::unique_ptr<WeightSource> open(const json& quantization = nullptr) {
    folder_.write("model.safetensors", file.file());
    return open_weights(folder_.path(), {{"quantization_config", quantization}});
  }
  std::string path() const { return folder_.path() + "/model.safetensors"; }

  std::string e4m3_codes(int64_t count) {
    std::string codes = random_bytes(random, count);
    for (char& c : codes)
      if ((c & 0x7F) == 0x7F) c = 0x11;
    return codes;
  }

  std::mt19937 random;
  ToyCheckpoint file;

 private:
  TemporaryFolder folder_;
};

void expect_equal(const RawMatrix& m, const Written& w) {
  ASSERT_EQ(m.rows, w.rows);
  ASSERT_EQ(m.cols, w.cols);
  for (int64_t r = 0; r < w.rows; ++r)
    for (int64_t c = 0; c < w.cols; ++c) ASSERT_EQ(m.at(r, c), w.at(r, c)) << m.name << " row " << r << " column " << c;
}

TEST(WeightFormats, AllInOneFile) {
  Toy t;
  const Written nvfp4 = t.nvfp4("a", 48, 64, 0.003f), packed = t.nvfp4("b", 32, 32, 0.007f, true);
  const Written tensor = t.fp8("c", 20, 40, false), channel = t.fp8("d", 20, 40, true);
  const Written block = t.fp8_block("e", 200, 300), named_otherwise = t.fp8_block("f", 130, 129, ".weight_scale");
  const Written plain = t.bf16("g", 3, 5);
  t.file.add_f32("h.weight", {2, 2}, {1, 2, 3, 4});
  t.file.add("i.weight", "F16", {1, 2}, std::string("\x00\x3C\x00\xC0", 4));
  const double double_value = 0.1;
  t.file.add("j.weight", "F64", {1, 1}, std::string(reinterpret_cast<const char*>(&double_value), 8));
  const auto source = t.open();
  EXPECT_FALSE(source->is_dummy());
  expect_equal(source->matrix("a", 48, 64), nvfp4);
  expect_equal(source->matrix("b", 32, 32), packed);
  expect_equal(source->matrix("c", 20, 40), tensor);
  expect_equal(source->matrix("d", 20, 40), channel);
  expect_equal(source->matrix("e", 200, 300), block);
  expect_equal(source->matrix("e", 200, 300).slice_rows(100, 200).slice_cols(128, 300),
               {100, 172, [&] {
                  std::vector<double> v;
                  for (int64_t r = 100; r < 200; ++r)
                    for (int64_t c = 128; c < 300; ++c) v.push_back(block.at(r, c));
                  return v;
                }()});
  expect_equal(source->matrix("f", 130, 129), named_otherwise);
  expect_equal(source->matrix("g", 3, 5), plain);
  expect_equal(source->matrix("h", 2, 2), {2, 2, {1, 2, 3, 4}});
  expect_equal(source->matrix("i", 1, 2), {1, 2, {1, -2}});
  expect_equal(source->matrix("j", 1, 1), {1, 1, {static_cast<double>(0.1f)}});
  const std::pair<const char*, WeightFormat> formats[] = {
      {"a", WeightFormat::kNvfp4}, {"b", WeightFormat::kNvfp4},    {"c", WeightFormat::kFp8},
      {"d", WeightFormat::kFp8},   {"e", WeightFormat::kFp8Block}, {"f", WeightFormat::kFp8Block},
      {"g", WeightFormat::kBf16},  {"h", WeightFormat::kF32}};
  for (const auto& [module, format] : formats) {
    EXPECT_EQ(source->format_of(module), format) << module;
    EXPECT_TRUE(source->has(module));
  }
  EXPECT_FALSE(source->has("z"));
  source->release();
  source->finish();
}

TEST(WeightFormats, FusedExperts) {
  Toy t;
  const int64_t e = 3, n = 4, k = 32;
  std::vector<float> plain;
  for (int64_t i = 0; i < e * n * k; ++i) plain.push_back(static_cast<float>(i % 200));
  t.file.add_bf16("p.experts.gate_up_proj", {e, n, k}, plain);
  const std::string codes = random_bytes(t.random, e * n * k / 2),
                    scales = random_bytes(t.random, e * n * k / 16, 0x7E);
  const auto fused = [&](const std::string& name, std::vector<int64_t> shape, const std::vector<float>& globals) {
    t.file.add(name, "U8", {e, n, k / 2}, codes).add(name + "_weight_scale", "F8_E4M3", {e, n, k / 16}, scales);
    t.file.add_f32(name + "_weight_scale_2", std::move(shape), globals).add_f32(name + "_input_scale", {}, {1});
  };
  fused("q.experts.gate_up_proj", {e, 1, 1}, {0.1f, 0.2f, 0.4f});
  fused("r.experts.gate_up_proj", {e, 2}, {0.1f, 1.f, 0.2f, 2.f, 0.4f, 4.f});
  fused("s.experts.down_proj", {}, {0.5f});
  t.file.add("u.experts.down_proj", "U8", {e, n, k / 2}, codes)
      .add("u.experts.down_proj_scale", "F8_E4M3", {e, n, k / 16}, scales);
  t.file.add_f32("u.experts.down_proj_scale_2", {e}, {1, 2, 3});
  const std::string fp8 = t.e4m3_codes(e * 128 * k);
  t.file.add("v.experts.down_proj", "F8_E4M3", {e, 128, k}, fp8)
      .add_f32("v.experts.down_proj_scale_inv", {e, 1, 1}, {1, 2, 3});
  const auto source = t.open();
  EXPECT_TRUE(source->has("p.experts.gate_up_proj"));
  const RawMatrix p = source->matrix("p.experts.gate_up_proj", e * n, k);
  const RawMatrix q = source->matrix("q.experts.gate_up_proj", e * n, k),
                  r = source->matrix("r.experts.gate_up_proj", e * n, k);
  const RawMatrix s = source->matrix("s.experts.down_proj", e * n, k),
                  u = source->matrix("u.experts.down_proj", e * n, k);
  const RawMatrix v = source->matrix("v.experts.down_proj", e * 128, k);
  const float q_globals[] = {0.1f, 0.2f, 0.4f}, r_globals[] = {0.1f, 1.f, 0.2f, 2.f, 0.4f, 4.f};
  for (int64_t row = 0; row < e * n; ++row)
    for (int64_t col = 0; col < k; ++col) {
      const int64_t i = row * k + col;
      const double w = code_at(codes, i) * e4m3_at(scales, i / 16);
      ASSERT_EQ(p.at(row, col), plain[static_cast<size_t>(i)]);
      ASSERT_EQ(q.at(row, col), w * q_globals[row / n]);
      ASSERT_EQ(r.at(row, col), w * r_globals[row / (n / 2)]);
      ASSERT_EQ(s.at(row, col), w * 0.5);
      ASSERT_EQ(u.at(row, col), w * static_cast<double>(1 + row / n));
      ASSERT_EQ(q.slice_rows(n, 2 * n).at(row % n, col), q.at(n + row % n, col));
    }
  for (int64_t i = 0; i < e * 128 * k; ++i)
    ASSERT_EQ(v.at(i / k, i % k), e4m3_at(fp8, i) * static_cast<double>(1 + i / k / 128));
  source->finish();
}

TEST(WeightFormats, BlockScalesAreToldFromChannelScalesByTheirShape) {
  Toy t;
  const Written block = t.fp8_block("block", 4, 512, ".weight_scale");  // as many blocks as rows: [1, 4]
  const Written channel = t.fp8("channel", 4, 512, true);               // [4, 1]
  const std::string codes = t.e4m3_codes(256 * 256);
  t.file.add("spread.weight", "F8_E4M3", {256, 256}, codes).add_f32("spread.weight_scale", {2, 1, 2, 1}, {1, 2, 3, 4});
  const auto source = t.open();
  expect_equal(source->matrix("block", 4, 512), block);
  expect_equal(source->matrix("channel", 4, 512), channel);
  EXPECT_EQ(source->matrix("spread", 256, 256).at(200, 100), e4m3_at(codes, 200 * 256 + 100) * 3);
}

TEST(WeightFormats, AnUnalignedTensorIsStillAligned) {
  ToyCheckpoint c;
  c.add("a.weight", "U8", {1}, "x").add_bf16("b.weight", {1, 3}, {1, 2, 3});
  const TemporaryFolder folder;
  // An odd header moves all tensors to odd addresses.
  std::string header = c.header().dump();
  header += std::string((8 - header.size() % 8) % 8, ' ');
  folder.write("model.safetensors", ToyCheckpoint::file(header, c.data()));
  const auto source = open_weights(folder.path(), json::object());
  const RawMatrix m = source->matrix("b", 1, 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(m.data) % 2, 0u);
  EXPECT_EQ(m.at(0, 2), 3.0);
}

TEST(WeightFormats, VectorsOfAnyFloatType) {
  Toy t;
  t.file.add_f32("a", {3}, {1, 2, 3})
      .add_bf16("b.weight", {2, 1, 2}, {1, 2, 3, 4})
      .add("c", "F16", {1}, std::string("\x00\x3C", 2));
  t.file.add_f32("nan", {2}, {0, NAN}).add("i", "I64", {1}, "12345678").add_f32("inf", {1}, {INFINITY});
  const auto source = t.open();
  EXPECT_EQ(source->vector("a", {3}), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(source->vector("b.weight", {2, 2}), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(source->vector("c", {1}), (std::vector<float>{1}));
  const auto refused = [&](const std::string& name, const Shape& shape, std::initializer_list<std::string> pieces) {
    expect_error(Code::kBadModel, pieces, [&] { source->vector(name, shape); });
  };
  refused("a", {4}, {"a: must be [4], got [3] F32"});
  refused("b.weight", {4}, {"b.weight: must be [4], got [2, 1, 2] BF16"});
  refused("missing", {4}, {"missing: is missing, must be [4]"});
  refused("nan", {2}, {"nan: must be finite, element 1 of 2 is nan"});
  refused("inf", {1}, {"inf: must be finite, element 0 of 1 is inf"});
  refused("i", {1}, {"i: must be a float type, is I64"});
}

// ---- refused ------------------------------------------------------------------------------------------------------

void expect_matrix_refused(Toy& t, int64_t rows, int64_t cols, std::initializer_list<std::string> pieces) {
  const auto source = t.open();
  expect_error(Code::kBadModel, pieces, [&] { source->matrix("m", rows, cols); });
}

TEST(WeightsRefused, MissingOrOfAnotherShape) {
  Toy t;
  t.nvfp4("m", 4, 32, 1);
  t.bf16("n", 4, 32);
  const auto source = t.open();
  const auto refused = [&](const char* module, int64_t rows, int64_t cols, std::initializer_list<std::string> pieces) {
    expect_error(Code::kBadModel, pieces, [&] { source->matrix(module, rows, cols); });
  };
  refused("m", 4, 16, {"m.weight: must be [4, 16] nvfp4, got [4, 16] U8 (4 rows, 32 columns)"});
  refused("m", 5, 32, {"m.weight: must be [5, 32]"});
  refused("n", 32, 4, {"n.weight: must be [32, 4] bf16, got [4, 32] BF16"});
  refused("o", 1, 1, {"o: is missing", "o.weight"});
  t.file.add_f32("empty.weight", {0, 4}, {});
  expect_error(Code::kBadModel, {"empty: must have at least one row", "[0, 4]"},
               [&] { t.open()->matrix("empty", 0, 4); });
  expect_error(Code::kBadModel, {"o: is missing"}, [&] { source->format_of("o"); });
}

TEST(WeightsRefused, ScalesMissingOrOfTheWrongTypeOrShape) {
  const std::string codes(4 * 16, 'x'), scales(8, '\x38');
  {
    Toy t;
    t.file.add("m.weight", "U8", {4, 16}, codes);
    expect_matrix_refused(t, 4, 32, {"m.weight_scale: is missing beside m.weight"});
  }
  {
    Toy t;
    t.file.add("m.weight", "U8", {4, 16}, codes).add("m.weight_scale", "F8_E4M3", {4, 2}, scales);
    expect_matrix_refused(t, 4, 32, {"m.weight_scale_2: is missing beside m.weight"});
  }
  {
    Toy t;
    t.file.add("m.weight_packed", "U8", {4, 16}, codes).add("m.weight_scale", "F8_E4M3", {4, 2}, scales);
    expect_matrix_refused(t, 4, 32, {"m.weight_global_scale: is missing beside m.weight_packed"});
  }
  {
    Toy t;
    t.file.add("m.weight", "U8", {4, 16}, codes)
        .add_f32("m.weight_scale", {4, 2}, std::vector<float>(8, 1))
        .add_f32("m.weight_scale_2", {}, {1});
    expect_matrix_refused(t, 4, 32, {"m.weight_scale: must be F8_E4M3, is F32 [4, 2]"});
  }
  {
    Toy t;
    t.file.add("m.weight", "U8", {4, 16}, codes)
        .add("m.weight_scale", "F8_E4M3", {2, 4}, scales)
        .add_f32("m.weight_scale_2", {}, {1});
    expect_matrix_refused(t, 4, 32, {"m.weight_scale: must be [4, 2] F8_E4M3", "got [2, 4]"});
  }
  {
    Toy t;
    t.file.add("m.weight", "U8", {4, 16}, codes)
        .add("m.weight_scale", "F8_E4M3", {4, 2}, scales)
        .add("m.weight_scale_2", "I32", {}, "abcd");
    expect_matrix_refused(t, 4, 32, {"m.weight_scale_2: must be F32, is I32"});
  }
  {
    Toy t;
    t.file.add("m.weight", "U8", {4, 16}, codes)
        .add("m.weight_scale", "F8_E4M3", {4, 2}, scales)
        .add_f32("m.weight_scale_2", {3}, {1, 1, 1});
    expect_matrix_refused(t, 4, 32, {"m.weight_scale_2: must have 1, 1 (experts) or 4 (rows) elements, got [3]"});
  }
  {
    Toy t;
    t.file.add("m.weight", "F8_E4M3", {4, 16}, codes);
    expect_matrix_refused(t, 4, 16, {"m.weight_scale: is missing beside m.weight"});
  }
  {
    Toy t;
    t.file.add("m.weight", "F8_E4M3", {4, 16}, codes).add("m.weight_scale", "I32", {}, "abcd");
    expect_matrix_refused(t, 4, 16, {"m.weight_scale: must be a float type, is I32"});
  }
  {
    Toy t;
    t.file.add("m.weight", "F8_E4M3", {4, 16}, codes).add_f32("m.weight_scale_inv", {2, 1}, {1, 1});
    expect_matrix_refused(t, 4, 16, {"m.weight_scale_inv: must be [1, 1]", "got [2, 1]"});
  }
}

TEST(WeightsRefused, BlockScalesThatAreNoNumberOrNegative) {
  for (const int code : {0x7F, 0xFF, 0xB8, 0x80}) {
    Toy t;
    std::string scales(2 * 4, '\x38');
    scales[5] = static_cast<char>(code);
    t.file.add("m.weight", "U8", {4, 16}, std::string(64, 'x'))
        .add("m.weight_scale", "F8_E4M3", {4, 2}, scales)
        .add_f32("m.weight_scale_2", {}, {1});
    expect_matrix_refused(t, 4, 32, {"m.weight_scale: scales must be numbers >= 0, row 2 column 1 is", "code 0x"});
  }
}

TEST(WeightsRefused, AZeroBlockScaleIsLegal) {
  Toy t;
  t.file.add("m.weight", "U8", {4, 16}, std::string(64, 'x'))
      .add("m.weight_scale", "F8_E4M3", {4, 2}, std::string(8, '\0'));
  t.file.add_f32("m.weight_scale_2", {}, {1});
  EXPECT_EQ(t.open()->matrix("m", 4, 32).at(1, 1), 0.0);
}

TEST(WeightsRefused, GlobalScales) {
  const float denormal = std::numeric_limits<float>::denorm_min();
  for (const float bad : {NAN, INFINITY, -INFINITY, 0.f, -0.f, -1.f}) {
    Toy multiplier, divisor, fp8;
    multiplier.nvfp4("m", 4, 32, bad);
    expect_matrix_refused(multiplier, 4, 32, {"m.weight_scale_2: must be finite and > 0", "element 0 of 1 is"});
    divisor.file.add("m.weight_packed", "U8", {4, 16}, std::string(64, 'x'))
        .add("m.weight_scale", "F8_E4M3", {4, 2}, std::string(8, '\x38'));
    divisor.file.add_f32("m.weight_global_scale", {1}, {bad});
    expect_matrix_refused(divisor, 4, 32, {"m.weight_global_scale: must be finite and > 0 (as is 1/x)"});
    fp8.file.add("m.weight", "F8_E4M3", {4, 16}, std::string(64, 'x')).add_f32("m.weight_scale", {1}, {bad});
    expect_matrix_refused(fp8, 4, 16, {"m.weight_scale: must be finite and > 0"});
  }
  Toy tiny;
  tiny.file.add("m.weight_packed", "U8", {4, 16}, std::string(64, 'x'))
      .add("m.weight_scale", "F8_E4M3", {4, 2}, std::string(8, '\x38'));
  tiny.file.add_f32("m.weight_global_scale", {1}, {denormal});
  expect_matrix_refused(tiny, 4, 32, {"m.weight_global_scale: must be finite and > 0 (as is 1/x)"});
  for (const float bad : {NAN, INFINITY, -1.f}) {
    Toy channel, block;
    channel.file.add("m.weight", "F8_E4M3", {4, 16}, std::string(64, 'x'))
        .add_f32("m.weight_scale", {4, 1}, {1, 0, bad, 1});
    expect_matrix_refused(channel, 4, 16, {"m.weight_scale: must be finite and >= 0, element 2 of 4"});
    block.file.add("m.weight", "F8_E4M3", {4, 200}, std::string(800, 'x'))
        .add_f32("m.weight_scale_inv", {1, 2}, {1, bad});
    expect_matrix_refused(block, 4, 200, {"m.weight_scale_inv: scales must be numbers >= 0, row 0 column 1"});
  }
}

TEST(WeightsRefused, WeightsThatAreNoNumbers) {
  for (const int64_t where : {0, 1, 4095, 4096, 9999}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Toy bf16, f32;
      std::vector<float> values(10'000, 1);
      values[static_cast<size_t>(where)] = bad;
      const std::string at = "row " + std::to_string(where / 100) + " column " + std::to_string(where % 100);
      bf16.file.add_bf16("m.weight", {100, 100}, values);
      expect_matrix_refused(bf16, 100, 100, {"m.weight: weights must be finite, " + at});
      f32.file.add_f32("m.weight", {100, 100}, values);
      expect_matrix_refused(f32, 100, 100, {"m.weight: weights must be finite, " + at});
    }
    for (const char code : {'\x7F', '\xFF'}) {
      Toy fp8;
      std::string codes(10'000, 'x');
      codes[static_cast<size_t>(where)] = code;
      fp8.file.add("m.weight", "F8_E4M3", {100, 100}, codes).add_f32("m.weight_scale", {}, {1});
      expect_matrix_refused(fp8, 100, 100, {"m.weight: weights must be numbers, row " + std::to_string(where / 100)});
    }
  }
  Toy f16;
  f16.file.add("m.weight", "F16", {1, 2}, std::string("\x00\x3C\x00\x7C", 4));
  expect_matrix_refused(f16, 1, 2, {"m.weight: weights must be finite, row 0 column 1 is inf"});
}

TEST(WeightsRefused, FormatsNobodyReadsBeforeAnythingLoads) {
  const auto refused = [](Toy& t, std::initializer_list<std::string> pieces) {
    t.bf16("fine", 2, 2);
    expect_error(Code::kUnsupported, pieces, [&] { t.open(); });
  };
  const std::string name = "model.layers.3.mlp.experts.0.up_proj";
  for (const char* scale : {"U8", "F8_E8M0"}) {
    Toy mxfp8, mxfp4;
    mxfp8.file.add(name + ".weight", "F8_E4M3", {2, 32}, std::string(64, 'x'))
        .add(name + ".weight_scale", scale, {2, 1}, "ab");
    refused(mxfp8, {name, "MXFP8", scale, "supported: NVFP4"});
    mxfp4.file.add(name + ".weight", "U8", {2, 16}, std::string(32, 'x'))
        .add(name + ".weight_scale", scale, {2, 1}, "ab");
    refused(mxfp4, {name, "MXFP4", scale});
  }
  Toy blocks, int4, awq, int8, e5m2, smoothed, two;
  blocks.file.add("model.layers.3.mlp.experts.gate_up_proj_blocks", "U8", {1, 2, 1, 16}, std::string(32, 'x'));
  refused(blocks, {"model.layers.3.mlp.experts.gate_up_proj", "MXFP4"});
  int4.file.add(name + ".weight_packed", "I32", {2, 4}, std::string(32, 'x'))
      .add_bf16(name + ".weight_scale", {2, 1}, {1, 1});
  refused(int4, {name, "packed integers (I32 weight)"});
  awq.file.add(name + ".qweight", "I32", {2, 4}, std::string(32, 'x'));
  refused(awq, {name, "AWQ or GPTQ"});
  int8.file.add(name + ".weight", "I8", {2, 4}, std::string(8, 'x')).add_f32(name + ".weight_scale", {2, 1}, {1, 1});
  refused(int8, {name, "INT8"});
  e5m2.file.add(name + ".weight", "F8_E5M2", {2, 4}, std::string(8, 'x')).add_f32(name + ".weight_scale", {}, {1});
  refused(e5m2, {name, "F8_E5M2 weights"});
  smoothed.nvfp4(name, 2, 32, 1);
  smoothed.file.add_f32(name + ".pre_quant_scale", {32}, std::vector<float>(32, 1));
  refused(smoothed, {name, "AWQ smoothing (pre_quant_scale) of nvfp4"});
  two.file.add("a.weight", "I8", {1, 1}, "a").add("b.weight", "I8", {1, 1}, "b");
  refused(two, {"a: INT8 is not supported (nor are 1 more modules)"});
}

// ---- config against tensors ----------------------------------------------------------------------------------------

json modelopt(const std::vector<std::string>& ignore) {
  return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", ignore}};
}

TEST(ConfigAgainstTensors, AContradictionNamesBoth) {
  Toy nvfp4, fp8;
  nvfp4.nvfp4("model.layers.0.up_proj", 4, 32, 1);
  nvfp4.open(modelopt({}));
  expect_error(Code::kBadModel,
               {"model.layers.0.up_proj: nvfp4 by its tensors (model.layers.0.up_proj.weight U8)",
                "bf16 by config.quantization_config (modelopt)"},
               [&] { nvfp4.open(modelopt({"model.layers.0*"})); });
  fp8.fp8("x", 4, 16, false);
  expect_error(Code::kBadModel, {"x: fp8 by its tensors", "nvfp4 by config"}, [&] { fp8.open(modelopt({})); });
  expect_error(Code::kBadModel, {"x: fp8 by its tensors", "fp8_block by config.quantization_config (fp8)"}, [&] {
    fp8.open({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}});
  });
}

TEST(ConfigAgainstTensors, UnquantisedTensorsWinSilentlyButForALine) {
  Toy t;
  const Written w = t.bf16("mtp.fc", 4, 32);
  const auto source = t.open(modelopt({}));
  expect_equal(source->matrix("mtp.fc", 4, 32), w);
  testing::internal::CaptureStderr();
  source->finish();
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("1 modules are not quantised though the config says so"), std::string::npos) << line;
  EXPECT_NE(line.find("mtp.fc"), std::string::npos) << line;
}

TEST(ConfigAgainstTensors, QuantisedTensorsWithoutAConfigAreRead) {
  Toy t;
  const Written w = t.nvfp4("m", 4, 32, 0.5f);
  testing::internal::CaptureStderr();
  const auto source = t.open();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no quantization_config"), std::string::npos);
  expect_equal(source->matrix("m", 4, 32), w);
}

TEST(ConfigAgainstTensors, AnUnknownAlgorithmIsRefusedBeforeTheFiles) {
  const TemporaryFolder empty;
  expect_error(Code::kUnsupported, {"quant_algo", "nonsense"}, [&] {
    open_weights(empty.path(), {{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "nonsense"}}}});
  });
}

// ---- accounting ----------------------------------------------------------------------------------------------------

TEST(Accounting, EveryTensorIsUsedOrIgnored) {
  Toy t;
  t.nvfp4("a", 4, 32, 1);
  t.file.add_f32("a.input_scale", {}, {1})
      .add_f32("self_attn.k_proj.k_scale", {}, {1})
      .add_f32("self_attn.v_scale", {}, {1});
  t.bf16("b", 2, 2);
  t.bf16("visual.c", 2, 2);
  t.file.add_f32("norm.weight", {2}, {1, 1});
  t.nvfp4("d", 4, 32, 1, true);
  t.file.add_f32("d.input_global_scale", {1}, {1});
  const auto source = t.open();
  expect_error(Code::kBadModel, {"11 tensors", "used by nothing in this model", "a.weight", ", ..."},
               [&] { source->finish(); });
  source->matrix("a", 4, 32);
  source->matrix("d", 4, 32);
  source->vector("norm.weight", {2});
  source->ignore("visual.", "vision");
  expect_error(Code::kBadModel, {"1 tensors (8 bytes)", "nothing in this model: b.weight"}, [&] { source->finish(); });
  source->matrix("b", 2, 2);
  testing::internal::CaptureStderr();
  source->finish();
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("1 tensors (8 bytes) of visual.* not used: vision"), std::string::npos) << lines;
  source->finish();
}

TEST(Accounting, CompanionsOfAnUnusedModuleAreUnused) {
  Toy t;
  t.bf16("a", 2, 2);
  t.file.add_f32("b.input_scale", {}, {1});
  const auto source = t.open();
  source->matrix("a", 2, 2);
  expect_error(Code::kBadModel, {"1 tensors (4 bytes)", "b.input_scale"}, [&] { source->finish(); });
}

TEST(Accounting, AFileThatShrinksWhileItIsReadIsNoticed) {
  Toy t;
  t.bf16("m", 200, 200);
  const auto source = t.open();
  std::filesystem::resize_file(t.path(), 4096);
  try {
    source->matrix("m", 200, 200);
  } catch (const Error&) {
  }
  expect_error(Code::kBadModel, {"model.safetensors", "shrank"}, [&] { source->finish(); });
}

}  // namespace
}  // namespace mettle

// Where products of bulk copies are offered, and what memory they take: host code.
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/cpu/reference_math.h"
#include "ops/cuda/gdn_bulk.h"
#include "ops/linear.h"

namespace mettle {
namespace {

Device gpu(int sm) {
  Device d;
  d.kind = DeviceKind::kCuda;
  d.sm = sm;
  d.shared_per_block = 227 * 1024;
  return d;
}

template <class Op>
const Backend<Op>& backend(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->kind == DeviceKind::kCuda && b->name == name) return *b;
  throw std::runtime_error("no such backend");
}

template <class Op>
const Tactic* bulk(std::vector<Tactic>& all, std::string_view name, const typename Op::Problem& p, int sm) {
  all = backend<Op>(name).tactics(p, gpu(sm));
  for (const Tactic& t : all)
    if (t.name == "bulk") return &t;
  return nullptr;
}

GdnProblem gdn(WeightFormat in, WeightFormat out) {
  return {.hidden = 2048, .key_heads = 16, .value_heads = 32, .dk = 128, .dv = 128, .in_format = in, .out_format = out};
}

TEST(CudaBulk, IsOfferedForFp8AndBf16OnSm90Alone) {
  std::vector<Tactic> all;
  using F = WeightFormat;
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", gdn(F::kFp8, F::kFp8), 90) != nullptr, cuda::wgmma_built());
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", gdn(F::kBf16, F::kFp8), 90) != nullptr, cuda::wgmma_built());
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", gdn(F::kFp8, F::kFp8), 80), nullptr);
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", gdn(F::kFp8, F::kFp8), 120), nullptr);
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", gdn(F::kNvfp4, F::kFp8), 90), nullptr);
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", gdn(F::kFp8, F::kNvfp4), 90), nullptr);
  GdnProblem other = gdn(F::kFp8, F::kFp8);
  other.ba_format = F::kFp8;
  EXPECT_EQ(bulk<GdnOp>(all, "recurrent", other, 90), nullptr);
  AttentionProblem p{.hidden = 2048, .heads = 16, .kv_heads = 2, .head_dim = 256, .rotary_dim = 64, .gate = true};
  p.qkv_format = p.out_format = F::kFp8;
  EXPECT_EQ(bulk<AttentionOp>(all, "flash", p, 90) != nullptr, cuda::wgmma_built());
  EXPECT_EQ(bulk<AttentionOp>(all, "flash", p, 80), nullptr);
  p.out_format = F::kNvfp4;
  EXPECT_EQ(bulk<AttentionOp>(all, "flash", p, 90), nullptr);
}

TEST(CudaBulk, LinearTakesItInEveryFormatOnSm90Alone) {
  std::vector<Tactic> all;
  for (const WeightFormat f : {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16}) {
    const LinearProblem p{.in = 272, .out = 257, .format = f};
    EXPECT_EQ(bulk<LinearOp>(all, "tiles", p, 90) != nullptr, cuda::wgmma_built());
    EXPECT_EQ(bulk<LinearOp>(all, "tiles", p, 80), nullptr);
    EXPECT_EQ(bulk<LinearOp>(all, "tiles", p, 120), nullptr);
  }
}

TEST(CudaBulk, WorkspaceOfLinearHoldsOnePassOfX) {
  std::vector<Tactic> all;
  const LinearProblem p{.in = 2064, .out = 257, .format = WeightFormat::kNvfp4};
  const Tactic* t = bulk<LinearOp>(all, "tiles", p, 90);
  if (t == nullptr) GTEST_SKIP() << "a build without wgmma";
  const Backend<LinearOp>& b = backend<LinearOp>("tiles");
  size_t before = 0;
  for (const int rows : {1, 17, 64, 65, 128, 129, 256, 257, 5000}) {
    const size_t bytes = b.workspace(*t, p, rows, 1);
    EXPECT_GE(bytes, before) << rows;
    EXPECT_GE(bytes, size_t{2064 * 2} * static_cast<size_t>(std::min(rows, 256))) << rows;
    before = bytes;
  }
  EXPECT_EQ(before, b.workspace(*t, p, 256, 1));
  EXPECT_EQ(b.workspace(all.front(), p, 256, 1), 0u);
}

// Carves that only count.
struct Counter {
  int64_t bytes = 0, last = 0;
  template <class T>
  T* take(int64_t count) {
    last = count;
    bytes += count * static_cast<int64_t>(sizeof(T));
    return nullptr;
  }
};

TEST(CudaBulk, SumsOverPartsOfKFitTheirMemory) {
  for (const int matrix_rows : {16, 256, 272, 2048, 4096, 9216, 20480})
    for (const int units : {1, 2, 3, 16})
      for (int64_t before = 0; int rows : {17, 32, 33, 64, 65, 128, 129, 200, 256}) {
        cuda::P64View w;
        w.rows = matrix_rows, w.tiles = (matrix_rows + 15) / 16, w.units = units;
        const int splits = cuda::bulk_splits(w, rows);
        EXPECT_GE(splits, 1);
        EXPECT_LE(splits, units);
        Counter counter;
        cuda::bulk_scratch(counter, rows, 2048, matrix_rows, 16);
        EXPECT_LE(splits > 1 ? int64_t{splits} * rows * matrix_rows : 0, counter.last) << matrix_rows << " " << rows;
        EXPECT_GE(counter.bytes, before) << "less memory for more rows";
        EXPECT_GE(counter.bytes - counter.last * 4, cuda::bulk_bytes(rows, 32));
        before = counter.bytes;
      }
  Counter most, more;
  cuda::bulk_scratch(most, 256, 2048, 2048, 2048);
  cuda::bulk_scratch(more, 100'000, 2048, 2048, 2048);
  EXPECT_EQ(most.bytes, more.bytes);
}

TEST(CudaBulk, WorkspaceHoldsWhatTheOtherTacticsTakeToo) {
  std::vector<Tactic> all;
  const GdnProblem p = gdn(WeightFormat::kFp8, WeightFormat::kFp8);
  const Tactic* t = bulk<GdnOp>(all, "recurrent", p, 90);
  if (t == nullptr) GTEST_SKIP() << "a build without wgmma";
  const Backend<GdnOp>& b = backend<GdnOp>("recurrent");
  for (const int rows : {1, 17, 64, 256, 2048})
    EXPECT_GT(b.workspace(*t, p, rows, 1), b.workspace(all.front(), p, rows, 1)) << rows;
}

}  // namespace
}  // namespace mettle

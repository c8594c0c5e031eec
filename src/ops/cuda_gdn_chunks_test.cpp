// Where the chunks of gdn stand and how their matrices lie: host code that the kernels share.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ops/cuda/gdn_chunked.h"

namespace mettle {
namespace {

Device gpu(size_t shared) {
  Device d;
  d.kind = DeviceKind::kCuda;
  d.name = "sm90";
  d.sm = 90;
  d.shared_per_block = shared;
  return d;
}

const Backend<GdnOp>& chunked() {
  for (const Backend<GdnOp>* b : backends_of<GdnOp>())
    if (b->kind == DeviceKind::kCuda && b->name == "chunked") return *b;
  ADD_FAILURE() << "no backend chunked";
  return *backends_of<GdnOp>().front();
}

TEST(CudaGdnChunks, NoTwoSequencesShareASlotAndAllFit) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const int most = std::array{17, 40, 300}[random() % 3];
    int rows = 0, free = 0;
    for (int s = static_cast<int>(random() % 20); s >= 0; --s) {
      const int q_len = 1 + static_cast<int>(random() % static_cast<unsigned>(most));
      if (q_len > cuda::kGdnShort) {
        const int first = cuda::gdn_first_chunk(rows);
        ASSERT_GE(first, free) << "row " << rows;
        free = first + cuda::gdn_chunk_count(q_len);
      }
      rows += q_len;
    }
    ASSERT_LE(free, cuda::gdn_chunk_slots(rows)) << rows << " rows";
  }
  // A sequence alone goes through chunks whatever its length.
  for (int rows = 1; rows < 3000; ++rows) ASSERT_LE(cuda::gdn_chunk_count(rows), cuda::gdn_chunk_slots(rows)) << rows;
}

// Every element has a place of its own, four neighbours stay together, and the same piece of eight rows that follow
// each other from a multiple of eight lies in all 32 banks.
template <class Place>
void expect_places(int columns, const Place& place) {
  std::set<int> seen;
  for (int row = 0; row < cuda::kGdnChunk; ++row)
    for (int column = 0; column < columns; ++column) {
      const int at = place(row, column);
      ASSERT_TRUE(at >= 0 && at < cuda::kGdnChunk * columns && seen.insert(at).second) << row << " " << column;
      ASSERT_EQ(at % 8, column % 8);
    }
  for (int first = 0; first < cuda::kGdnChunk; first += 8)
    for (int piece = 0; piece < columns; piece += 8) {
      std::set<int> banks;
      for (int row = first; row < first + 8; ++row) banks.insert(place(row, piece) / 8 % 8);
      ASSERT_EQ(banks.size(), 8u) << "rows from " << first << ", column " << piece;
    }
}

TEST(CudaGdnChunks, MatricesLieWithoutBankConflicts) {
  for (const int dk : {64, 128}) expect_places(dk, [dk](int r, int c) { return cuda::gdn_key_place(dk, r, c); });
  expect_places(cuda::kGdnChunk, cuda::gdn_solved_place);
}

TEST(CudaGdnChunks, RefusesWithValues) {
  const auto& b = chunked();
  const GdnProblem good{.hidden = 2048, .key_heads = 16, .value_heads = 32, .dk = 128, .dv = 128};
  const auto refused = [&](const GdnProblem& p, size_t shared, VerdictCode code, const std::string& have) {
    const Verdict v = b.supports(p, gpu(shared));
    EXPECT_EQ(v.code, code) << p.text();
    EXPECT_EQ(v.have, have) << p.text();
  };
  const Verdict v = b.supports(good, gpu(163 << 10));
  EXPECT_TRUE(v.ok() || v.code == VerdictCode::kNotBuilt) << v.sentence;
  refused(good, 99 << 10, VerdictCode::kSmemTooSmall, "101376 bytes a block");
  GdnProblem p = good;
  p.dk = 96;
  refused(p, 163 << 10, VerdictCode::kShapeUnsupported, "dk 96");
  p = good;
  p.dv = 48;
  refused(p, 163 << 10, VerdictCode::kShapeUnsupported, "dv 48");
  p = good;
  p.activation = Activation::kF32;
  refused(p, 163 << 10, VerdictCode::kFormatUnsupported, "f32 activations");
  EXPECT_EQ(b.supports(good, this_cpu()).code, VerdictCode::kWrongSm);
}

TEST(CudaGdnChunks, WorkspaceGrowsWithRowsAlone) {
  const auto& b = chunked();
  const GdnProblem p{.hidden = 2048, .key_heads = 16, .value_heads = 32, .dk = 128, .dv = 128};
  const Tactic tactic = b.tactics(p, gpu(163 << 10)).front();
  size_t last = 0;
  for (const int rows : {1, 15, 16, 31, 512, 2048}) {
    const size_t bytes = b.workspace(tactic, p, rows, 1);
    EXPECT_GT(bytes, last) << rows;
    last = bytes;
  }
  EXPECT_LT(last, size_t{400} << 20);  // of 2,048 rows
}

}  // namespace
}  // namespace mettle

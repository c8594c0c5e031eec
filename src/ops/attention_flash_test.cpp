// The arithmetic that decides which block does what on a GPU, and what the fast CUDA backends refuse: host code.
#include <gtest/gtest.h>

#include <random>

#include "ops/cuda/attention_flash.h"
#include "ops/gdn.h"

namespace mettle {
namespace {

using cuda::AttentionFlash;

Device gpu() {
  Device d;
  d.kind = DeviceKind::kCuda;
  d.name = "sm90";
  d.sm = 90;
  d.shared_per_block = 227 * 1024;
  return d;
}

template <class Op>
const Backend<Op>& named(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->kind == DeviceKind::kCuda && b->name == name) return *b;
  ADD_FAILURE() << "no backend " << name;
  return *backends_of<Op>().front();
}

TEST(AttentionFlash, SplitsCoverEveryKeyWithinWhatIsLaunched) {
  for (const int sequences : {1, 2, 7, 8, 9, 64, 500, 512, 513, 4000})
    for (int most_context = 1; most_context < 70'000; most_context += most_context < 300 ? 1 : 977) {
      const AttentionFlash a{.sequences = sequences, .most_context = most_context};
      const int splits = cuda::launched_splits(a), most = cuda::most_splits(sequences);
      ASSERT_LE(std::min(sequences, cuda::kSplitSlots) * splits, cuda::kSplitSlots);
      for (const int keys : {1, 63, 64, 65, 2048, 2049, 4096, 8192, 8193, most_context / 2 + 1, most_context}) {
        if (keys > most_context) continue;
        const int step = cuda::split_keys(keys, most), own = (keys + step - 1) / step;
        ASSERT_EQ(step % cuda::kSplitKeys, 0);
        ASSERT_LE(own, splits) << keys << " keys, " << sequences << " sequences, most " << most_context;
      }
    }
}

TEST(AttentionFlash, LaunchedTilesSufficeForAnyRaggedBatch) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    AttentionFlash a{.heads = 1 << (random() % 5), .kv_heads = 1};
    int64_t tiles = 0;
    a.sequences = 1 + static_cast<int>(random() % 20);
    for (int s = 0; s < a.sequences; ++s) {
      const int q_len = random() % 3 == 0 ? 1 : static_cast<int>(random() % 300);
      a.rows += q_len;
      if (!a.few(q_len)) tiles += (q_len * a.group() + cuda::kTileRows - 1) / cuda::kTileRows;
    }
    ASSERT_LE(tiles, cuda::launched_tiles(a)) << a.rows << " rows, group " << a.group();
  }
}

TEST(AttentionFlash, RefusesWithValues) {
  const auto& b = named<AttentionOp>("flash");
  const AttentionProblem good{.hidden = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .rotary_dim = 16};
  const auto refused = [&](AttentionProblem p, VerdictCode code, const std::string& have) {
    const Verdict v = b.supports(p, gpu());
    EXPECT_EQ(v.code, code) << p.text();
    EXPECT_EQ(v.have, have) << p.text();
  };
  const Verdict v = b.supports(good, gpu());
  EXPECT_TRUE(v.ok() || v.code == VerdictCode::kNotBuilt) << v.sentence;
  AttentionProblem p = good;
  p.head_dim = 96;
  refused(p, VerdictCode::kShapeUnsupported, "head_dim 96");
  p = good;
  p.heads = 34;
  refused(p, VerdictCode::kShapeUnsupported, "17 query heads a kv head");
  p = good;
  p.heads = 5;
  refused(p, VerdictCode::kShapeUnsupported, "5 query heads, 2 kv heads");
  p = good;
  p.rotary_dim = 66;
  refused(p, VerdictCode::kShapeUnsupported, "rotary 66 of 64");
  p = good;
  p.activation = Activation::kF32;
  refused(p, VerdictCode::kFormatUnsupported, "f32 activations");
  p = good;
  p.head_dim = 256;
  Device small = gpu();
  small.shared_per_block = 99 * 1024;
  EXPECT_EQ(b.supports(p, small).code, VerdictCode::kSmemTooSmall);
  small.shared_per_block = 163 * 1024;  // codes take less, since one stage is widened at a time
  EXPECT_EQ(b.supports(p, small).code, VerdictCode::kSmemTooSmall);
  p.cache = CacheFormat::kE4M3;
  EXPECT_NE(b.supports(p, small).code, VerdictCode::kSmemTooSmall);
  EXPECT_EQ(b.supports(good, this_cpu()).code, VerdictCode::kWrongSm);
}

TEST(GdnRecurrent, RefusesWithValues) {
  const auto& b = named<GdnOp>("recurrent");
  const GdnProblem good{.hidden = 256, .key_heads = 2, .value_heads = 4, .dk = 64, .dv = 64};
  const auto refused = [&](GdnProblem p, const std::string& have) {
    const Verdict v = b.supports(p, gpu());
    EXPECT_EQ(v.code, VerdictCode::kShapeUnsupported) << p.text();
    EXPECT_EQ(v.have, have) << p.text();
  };
  const Verdict v = b.supports(good, gpu());
  EXPECT_TRUE(v.ok() || v.code == VerdictCode::kNotBuilt) << v.sentence;
  GdnProblem p = good;
  p.dk = 96;
  refused(p, "dk 96");
  p = good;
  p.dv = 48;
  refused(p, "dv 48");
  p = good;
  p.conv = 3;
  refused(p, "convolution of width 3");
  p = good;
  p.value_heads = 5;
  refused(p, "5 value heads, 2 key heads");
}

}  // namespace
}  // namespace mettle

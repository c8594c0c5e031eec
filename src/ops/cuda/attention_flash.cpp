// attention on a GPU's tensor cores: see attention_flash.h.
#include "ops/cuda/attention_flash.h"

#include <cmath>
#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

// Variants: whether products of 17 to 256 rows go as product_bulk.h does.
constexpr int kMma = 0, kBulk = 1;

cuda::AttentionFlash carve(reference::Carver& c, const Tactic& tactic, const AttentionProblem& p, int64_t rows) {
  const int64_t slots = std::min<int64_t>(cuda::kSplitSlots, rows * cuda::kMostSplits) * p.kv_heads * cuda::kFewPacked;
  cuda::AttentionFlash s;
  s.qkv = c.take<float>(rows * p.qkv_rows());
  s.q = c.take<uint16_t>(rows * p.heads * p.head_dim);
  s.core = c.take<uint16_t>(rows * p.heads * p.head_dim);
  s.part = c.take<float>(slots * p.head_dim);
  s.part_stats = c.take<float>(slots * 2);
  if (tactic.variant == kBulk)
    s.bulk =
        cuda::bulk_scratch(c, rows, std::max<int64_t>(p.hidden, int64_t{p.heads} * p.head_dim), p.hidden, p.qkv_rows());
  return s;
}

Verdict supports(const AttentionProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("head_dim {}", p.head_dim), "64, 128 or 256");
  if (p.kv_heads < 1 || p.heads % p.kv_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} query heads, {} kv heads", p.heads, p.kv_heads),
                  "a multiple");
  if (p.heads / p.kv_heads > cuda::kFewPacked)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} query heads a kv head", p.heads / p.kv_heads),
                  fmt::format("at most {}", cuda::kFewPacked));
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > p.head_dim)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("rotary {} of {}", p.rotary_dim, p.head_dim),
                  "even, at most the head");
  if (const auto need = static_cast<size_t>(cuda::tile_shared_bytes(p.head_dim, p.cache == CacheFormat::kE4M3));
      device.shared_per_block < need)
    return refuse(VerdictCode::kSmemTooSmall, fmt::format("{} bytes a block", device.shared_per_block),
                  fmt::format("{} bytes for head_dim {}", need, p.head_dim));
  if (Verdict v = cuda_weight("qkv", p.qkv_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("out", p.out_format, int64_t{p.heads} * p.head_dim); !v.ok()) return v;
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic& tactic, const AttentionArgs& a, Stream& stream) {
  const AttentionProblem& p = a.problem;
  const AttentionWeights& w = *a.weights;
  const DeviceBatch& batch = *a.batch->device;
  reference::Carver carver(a.ws);
  cuda::AttentionFlash s = carve(carver, tactic, p, batch.rows);
  s.rows = batch.rows;
  s.sequences = batch.sequences;
  s.most_q = batch.most_q;
  s.most_context = batch.most_context;
  s.heads = p.heads;
  s.kv_heads = p.kv_heads;
  s.head_dim = p.head_dim;
  s.rotary_dim = p.rotary_dim;
  s.block_size = p.block_size;
  s.gate = p.gate;
  s.qk_norm = p.qk_norm;
  s.plus_one = p.norm_plus_one;
  s.eps = p.eps;
  s.exponent = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(p.head_dim)) *
                                  static_cast<double>(w.k_scale));
  s.codes = p.cache == CacheFormat::kE4M3;
  s.k_scale = w.k_scale;
  s.v_scale = w.v_scale;
  s.sequence = batch.sequence;
  s.row_sequence = batch.row_sequence;
  s.row_position = batch.row_position;
  s.blocks = batch.blocks;
  s.q_norm = w.q_norm.data();
  s.k_norm = w.k_norm.data();
  s.inv_freq = w.inv_freq.data();
  s.k_cache = a.k_cache.data;
  s.v_cache = a.v_cache.data;
  cuda::attention_flash(s, w, a.x.as<uint16_t>(), a.partial.as<float>(), stream.cuda);
}
#endif

}  // namespace

extern const Backend<AttentionOp> attention_cuda_flash;
const Backend<AttentionOp> attention_cuda_flash = {
    .name = "flash",
    .numerics = {.q = Rounds::kBf16, .p = Rounds::kBf16},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics =
        [](const AttentionProblem& p, const Device& device) {
          std::vector<Tactic> all = {{.name = "mma", .variant = kMma}};
          if (cuda::bulk_built(device) && cuda::bulk_takes(p.qkv_format) && cuda::bulk_takes(p.out_format))
            all.push_back({.name = "bulk", .variant = kBulk});
          return all;
        },
    .workspace =
        [](const Tactic& tactic, const AttentionProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, tactic, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

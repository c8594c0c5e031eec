// gdn on a GPU, row by row: see gdn_recurrent.h.
#include "ops/cuda/gdn_recurrent.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/cuda/gdn_bulk.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace cuda {

GdnRecurrent gdn_scratch(reference::Carver& c, const GdnProblem& p, int64_t rows) {
  const int64_t values = int64_t{p.value_heads} * p.dv;
  GdnRecurrent s;
  const int64_t sums = rows + std::min<int64_t>(rows, kGdnHalfRows);  // with a second share of few rows
  s.qkv = c.take<float>(sums * p.channels());
  s.z = c.take<float>(sums * values);
  s.ba = c.take<float>(rows * 2 * p.value_heads);
  s.conv = c.take<float>(rows * p.channels());
  s.gates = c.take<float>(rows * 2 * p.value_heads);
  s.read = c.take<float>(rows * values);
  s.core = c.take<uint16_t>(rows * values);
  s.parts = c.take<float>(std::min<int64_t>(kGdnOutputParts, rows * kGdnOutputSplits) * p.hidden);
  s.tickets = c.take<int32_t>(rows * p.key_heads);
  return s;
}

Verdict gdn_supports(const GdnProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (p.conv != 4)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("convolution of width {}", p.conv), "width 4");
  if (p.dk != 64 && p.dk != 128) return refuse(VerdictCode::kShapeUnsupported, fmt::format("dk {}", p.dk), "64 or 128");
  if (p.dv < 32 || p.dv > 256 || p.dv % kGdnColumns != 0)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("dv {}", p.dv), "32..256, a multiple of 32");
  if (p.key_heads < 1 || p.value_heads % p.key_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported,
                  fmt::format("{} value heads, {} key heads", p.value_heads, p.key_heads), "a multiple");
  if (Verdict v = cuda_weight("qkv and z", p.in_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("ba", p.ba_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("out", p.out_format, int64_t{p.value_heads} * p.dv); !v.ok()) return v;
  return cuda_built();
}

GdnRecurrent gdn_call(reference::Carver& carver, const GdnArgs& a) {
  const GdnProblem& p = a.problem;
  const GdnWeights& w = *a.weights;
  const DeviceBatch& batch = *a.batch->device;
  GdnRecurrent s = gdn_scratch(carver, p, batch.rows);
  s.rows = batch.rows;
  s.sequences = batch.sequences;
  s.most_q = batch.most_q;
  s.key_heads = p.key_heads;
  s.value_heads = p.value_heads;
  s.dk = p.dk;
  s.dv = p.dv;
  s.eps = p.eps;
  s.q_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.dk)));
  s.sequence = batch.sequence;
  s.row_sequence = batch.row_sequence;
  s.taps = w.conv.data();
  s.a_log = w.a_log.data();
  s.dt_bias = w.dt_bias.data();
  s.norm = w.norm.data();
  s.conv_state = a.conv_state.as<float>();
  s.state = a.state.as<float>();
  return s;
}

}  // namespace cuda

namespace {

// Variants: how many rows of a longer sequence are taken at a time; kBulk: four, and one row of many sequences as
// gdn_bulk.h does.
constexpr int kOneRow = 1, kFourRows = 4, kBulk = 5;

#if METTLE_CUDA
void run(const Tactic& tactic, const GdnArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  cuda::GdnRecurrent s = cuda::gdn_call(carver, a);
  s.four_rows = tactic.variant != kOneRow;
  if (tactic.variant == kBulk && cuda::gdn_bulk_takes(s)) {
    const cuda::BulkScratch bulk = cuda::gdn_bulk_scratch(carver, a.problem, s.rows);
    return cuda::gdn_bulk(s, bulk, *a.weights, a.x.as<uint16_t>(), a.partial.as<float>(), stream.cuda);
  }
  cuda::gdn_recurrent(s, *a.weights, a.x.as<uint16_t>(), a.partial.as<float>(), stream.cuda);
}
#endif

}  // namespace

extern const Backend<GdnOp> gdn_cuda_recurrent;
const Backend<GdnOp> gdn_cuda_recurrent = {
    .name = "recurrent",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = cuda::gdn_supports,
    .tactics =
        [](const GdnProblem& p, const Device& device) {
          std::vector<Tactic> all = {{.name = "four_rows", .variant = kFourRows},
                                     {.name = "one_row", .variant = kOneRow}};
          if (cuda::bulk_built(device) && cuda::gdn_bulk_takes(p)) all.push_back({.name = "bulk", .variant = kBulk});
          return all;
        },
    .workspace =
        [](const Tactic& tactic, const GdnProblem& p, int rows, int) {
          reference::Carver carver({});
          cuda::gdn_scratch(carver, p, rows);
          if (tactic.variant == kBulk) cuda::gdn_bulk_scratch(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

// attention on a GPU, reference: see attention_reference.h.
#include "ops/cuda/attention_reference.h"

#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

struct Scratch {
  float* rows;
  uint16_t* core;
};

Scratch carve(reference::Carver& c, const AttentionProblem& p, int64_t rows) {
  Scratch s;
  s.rows = c.take<float>(rows * p.qkv_rows());
  s.core = c.take<uint16_t>(rows * p.heads * p.head_dim);
  return s;
}

Verdict supports(const AttentionProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (p.kv_heads < 1 || p.heads < 1 || p.heads % p.kv_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} query heads, {} kv heads", p.heads, p.kv_heads),
                  "a multiple");
  if (p.head_dim < 1 || p.head_dim > cuda::kReferenceHeadDim)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("heads of {}", p.head_dim),
                  fmt::format("at most {}", cuda::kReferenceHeadDim));
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > p.head_dim)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("rotary {} of {}", p.rotary_dim, p.head_dim),
                  "even, at most the head");
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (Verdict v = cuda_weight("qkv", p.qkv_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("out", p.out_format, int64_t{p.heads} * p.head_dim); !v.ok()) return v;
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const AttentionArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  const Scratch s = carve(carver, a.problem, a.batch->device->rows);
  const AttentionWeights& w = *a.weights;
  cuda::attention_reference({.problem = a.problem,
                             .batch = *a.batch->device,
                             .qkv = cuda::matrix_of(w.qkv),
                             .out = cuda::matrix_of(w.out),
                             .q_norm = w.q_norm.data(),
                             .k_norm = w.k_norm.data(),
                             .inv_freq = w.inv_freq.data(),
                             .x = a.x.as<uint16_t>(),
                             .k_cache = a.k_cache.data,
                             .v_cache = a.v_cache.data,
                             .k_scale = w.k_scale,
                             .v_scale = w.v_scale,
                             .partial = a.partial.as<float>(),
                             .rows = s.rows,
                             .core = s.core},
                            stream.cuda);
}
#endif

}  // namespace

extern const Backend<AttentionOp> attention_cuda_reference;
const Backend<AttentionOp> attention_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const AttentionProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const AttentionProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

// gdn on a GPU, reference: see gdn_reference.h.
#include "ops/cuda/gdn_reference.h"

#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

struct Scratch {
  float *qkv, *z, *ba, *conv, *read;
  uint16_t* core;
};

Scratch carve(reference::Carver& c, const GdnProblem& p, int64_t rows) {
  const int64_t values = int64_t{p.value_heads} * p.dv;
  Scratch s;
  s.qkv = c.take<float>(rows * p.channels());
  s.z = c.take<float>(rows * values);
  s.ba = c.take<float>(rows * 2 * p.value_heads);
  s.conv = c.take<float>(rows * p.channels());
  s.read = c.take<float>(rows * values);
  s.core = c.take<uint16_t>(rows * values);
  return s;
}

Verdict supports(const GdnProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (p.key_heads < 1 || p.value_heads < 1 || p.value_heads % p.key_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported,
                  fmt::format("{} value heads, {} key heads", p.value_heads, p.key_heads), "a multiple");
  if (p.conv < 1) return refuse(VerdictCode::kShapeUnsupported, fmt::format("convolution of {}", p.conv), "1 or more");
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (Verdict v = cuda_weight("qkv and z", p.in_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("ba", p.ba_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("out", p.out_format, int64_t{p.value_heads} * p.dv); !v.ok()) return v;
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const GdnArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  const Scratch s = carve(carver, a.problem, a.batch->device->rows);
  const GdnWeights& w = *a.weights;
  cuda::gdn_reference({.problem = a.problem,
                       .batch = *a.batch->device,
                       .qkv = cuda::matrix_of(w.qkv),
                       .z = cuda::matrix_of(w.z),
                       .ba = cuda::matrix_of(w.ba),
                       .out = cuda::matrix_of(w.out),
                       .conv = w.conv.data(),
                       .a_log = w.a_log.data(),
                       .dt_bias = w.dt_bias.data(),
                       .norm = w.norm.data(),
                       .x = a.x.as<uint16_t>(),
                       .conv_state = a.conv_state.as<float>(),
                       .state = a.state.as<float>(),
                       .partial = a.partial.as<float>(),
                       .qkv_rows = s.qkv,
                       .z_rows = s.z,
                       .ba_rows = s.ba,
                       .conv_rows = s.conv,
                       .read_rows = s.read,
                       .core = s.core},
                      stream.cuda);
}
#endif

}  // namespace

extern const Backend<GdnOp> gdn_cuda_reference;
const Backend<GdnOp> gdn_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const GdnProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const GdnProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

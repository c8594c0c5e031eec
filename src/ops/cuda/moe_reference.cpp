// moe on a GPU, reference: see moe_reference.h.
#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/cuda/moe_reference.h"
#include "ops/cuda/moe_support.h"

namespace mettle {
namespace {

struct Scratch {
  float* logits;
  uint16_t *h, *shared_h;
};

Scratch carve(reference::Carver& c, const MoeProblem& p, int64_t rows) {
  Scratch s;
  s.logits = c.take<float>(rows * (p.experts + 1));
  s.h = c.take<uint16_t>(rows * p.top_k * p.width);
  s.shared_h = c.take<uint16_t>(rows * p.shared_width);
  return s;
}

Verdict supports(const MoeProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (p.top_k < 1 || p.top_k > p.experts)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("top_k {}", p.top_k),
                  fmt::format("1..{} experts", p.experts));
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (Verdict v = cuda_moe_weights(p); !v.ok()) return v;
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const MoeArgs& a, Stream& stream) {
  const MoeProblem& p = a.problem;
  const MoeWeights& w = *a.weights;
  reference::Carver carver(a.ws);
  const Scratch s = carve(carver, p, a.rows);
  cuda::moe_reference({.rows = a.rows,
                       .hidden = p.hidden,
                       .experts = p.experts,
                       .top_k = p.top_k,
                       .renormalise = p.renormalise,
                       .given = a.selection.given,
                       .shared = p.shared_width > 0,
                       .shared_gate = p.shared_width > 0 && p.shared_gate,
                       .router = cuda::matrix_of(w.router),
                       .gate_up = cuda::matrix_of(w.experts.front().gate_up),
                       .down = cuda::matrix_of(w.experts.front().down),
                       .shared_gate_up = cuda::matrix_of(w.shared.gate_up),
                       .shared_down = cuda::matrix_of(w.shared.down),
                       .experts_at = w.pointers,
                       .x = a.x.as<uint16_t>(),
                       .partial = a.partial.as<float>(),
                       .ids = a.selection.ids,
                       .weights = a.selection.weights,
                       .logits = s.logits,
                       .h = s.h,
                       .shared_h = s.shared_h},
                      stream.cuda);
}
#endif

}  // namespace

extern const Backend<MoeOp> moe_cuda_reference;
const Backend<MoeOp> moe_cuda_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const MoeProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const MoeProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

#include "ops/cpu/linear_product.h"

namespace mettle::cpu {
namespace {

struct Scratch {
  float* widened = nullptr;
  uint8_t* panels = nullptr;
  size_t panel_stride = 0;
};

Scratch carve(reference::Carver& c, const Product& product, const LinearProblem& p, int rows, int members) {
  Scratch s;
  if (!product.bf16 && p.activation == Activation::kBf16) s.widened = c.take<float>(static_cast<int64_t>(rows) * p.in);
  s.panel_stride = (product.panel_bytes(shape_of(p.format, p.out, p.in)) + 63) & ~size_t{63};
  s.panels = c.take<uint8_t>(static_cast<int64_t>(s.panel_stride) * members);
  return s;
}

}  // namespace

Verdict linear_supports(const LinearProblem& p, const Device& device) {
  return cpu_supports(device, {{p.format, p.in}});
}

size_t linear_workspace(Method method, const Tactic& tactic, const LinearProblem& p, int rows, int members) {
  reference::Carver c({});
  carve(c, product_of(tactic, method, p.activation, p.format), p, rows, members);
  return c.used();
}

void linear_run(Method method, const Tactic& tactic, const LinearArgs& a, Stream& stream) {
  const LinearProblem& p = a.problem;
  const Product product = product_of(tactic, method, p.activation, p.format);
  reference::Carver c(a.ws);
  const Scratch s = carve(c, product, p, a.rows, reference::members_of(stream));
  const Inputs inputs{a.x, s.widened};
  widen_rows(tactic, inputs, stream);
  multiply(product, tile_matrix(*a.weight), s.panels, s.panel_stride, inputs.rows(product, a.rows),
           {a.y.as<float>(), p.out}, stream);
}

}  // namespace mettle::cpu

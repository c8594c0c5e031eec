#include "ops/backend.h"

#include <fmt/format.h>

namespace mettle {

std::string_view name_of(Activation activation) { return activation == Activation::kF32 ? "f32" : "bf16"; }

std::string Numerics::text() const {
  const auto r = [](Rounds rounds) { return rounds == Rounds::kF32 ? "f32" : "bf16"; };
  return fmt::format("h={} gate_up={} q={} p={} core_out={} gdn_inner={}{}", r(h), r(gate_up), r(q), r(p), r(core_out),
                     r(gdn_inner), deterministic ? "" : " nondeterministic");
}

std::vector<Tactic> isa_tactics(const Device& device) {
  std::vector<Tactic> tactics;
  for (const Isa isa : device.isas) tactics.push_back({std::string(name_of(isa)), isa, 0});
  return tactics;
}

}  // namespace mettle

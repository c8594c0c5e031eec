#include "prove/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace mettle {
namespace {

Device with_every_isa(Device device) {
  device.isas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
  return device;
}

std::string names_of(const std::vector<Isa>& isas) {
  std::string out;
  for (const Isa isa : isas) out += fmt::format("{}{}", out.empty() ? "" : " ", name_of(isa));
  return out;
}

template <class Op>
void list_backend(const Backend<Op>& backend, const typename Op::Problem& problem, const Device& device,
                  std::vector<ProofEntry>& entries) {
  const auto add = [&](const std::string& tactic, Verdict verdict) {
    ProofEntry entry;
    entry.op = Op::kName;
    entry.backend = backend.name;
    entry.tactic = tactic;
    entry.problem = problem.text();
    entry.numerics = backend.numerics.text();
    entry.verdict = std::move(verdict);
    entries.push_back(std::move(entry));
  };
  try {
    Verdict verdict = backend.supports(problem, device);
    if (verdict.ok() && backend.run == nullptr) verdict = refuse(VerdictCode::kNotBuilt, "no code", "its code");
    if (!verdict.ok()) return add("", std::move(verdict));
    const std::vector<Tactic> tactics = backend.tactics(problem, device);
    if (tactics.empty())
      add("", refuse(VerdictCode::kFault, "no tactic", "at least one", "supports the problem but offers no tactic"));
    const auto missing = [&](const Tactic& t) {
      add(t.name, refuse(VerdictCode::kIsaMissing, names_of(device.isas), std::string(name_of(t.isa))));
    };
    for (const Tactic& t : tactics) {
      if (device.kind == DeviceKind::kCpu && !device.has(t.isa))
        missing(t);  // its own list claims more than there is
      else
        add(t.name, refuse(VerdictCode::kUnproved, "", ""));
    }
    for (const Tactic& t : backend.tactics(problem, with_every_isa(device))) {
      const bool listed =
          std::any_of(tactics.begin(), tactics.end(), [&](const Tactic& own) { return own.name == t.name; });
      if (!listed) missing(t);
    }
  } catch (const std::exception& e) {
    add("", refuse(VerdictCode::kFault, "exception", "an answer",
                   fmt::format("asked for its tactics it threw: {}", e.what())));
  }
}

}  // namespace

Candidates Candidates::all() {
  Candidates c;
  const auto take = [&]<class Op>(std::type_identity<Op>) {
    const auto all = backends_of<Op>();
    c.of<Op>().assign(all.begin(), all.end());
  };
  take(std::type_identity<EmbedOp>{});
  take(std::type_identity<JoinOp>{});
  take(std::type_identity<LinearOp>{});
  take(std::type_identity<MoeOp>{});
  take(std::type_identity<AttentionOp>{});
  take(std::type_identity<GdnOp>{});
  take(std::type_identity<SampleOp>{});
  return c;
}

std::vector<ProofEntry> list_candidates(const AnyProblem& problem, const Device& device, const Candidates& candidates) {
  std::vector<ProofEntry> entries;
  const auto list = [&]<class Problem>(const Problem& p) {
    for (const Backend<OpOf<Problem>>* backend : candidates.of<OpOf<Problem>>())
      if (backend->kind == device.kind) list_backend(*backend, p, device, entries);
  };
  std::visit(list, problem);
  return entries;
}

}  // namespace mettle

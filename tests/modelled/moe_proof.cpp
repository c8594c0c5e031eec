#include "moe_proof.h"

#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "ops/moe_cases.h"
#include "ops/oracle.h"
#include "prove/trial.h"

namespace modelled {

using namespace mettle;

namespace {

struct Launched {
  std::vector<uint8_t> partial, ids, weights;
};

Launched launch(const Moe& backend, const MoeProblem& p, const MoeCase& c, const CaseInput& x, const Launched* given,
                int pass, Examination& examination) {
  Guarded partial("partial", {c.rows, p.hidden}, DType::kF32);
  Guarded ids("ids", {c.rows, p.top_k}, DType::kI32), weights("weights", {c.rows, p.top_k}, DType::kF32);
  for (Guarded* g : {&partial, &ids, &weights}) g->prefill(pass);
  if (given != nullptr) {
    std::memcpy(ids.body(), given->ids.data(), ids.bytes());
    std::memcpy(weights.body(), given->weights.data(), weights.bytes());
  }
  GuardedWorkspace ws(backend.workspace(p, c.rows));
  backend.run({p,
               c.rows,
               x.view(),
               &c.weights->packed,
               partial.view(),
               {given != nullptr, ids.view().as<int32_t>(), weights.view().as<float>()},
               ws.arm()});
  examination.demand(pass == 0 ? partial.check() : partial.check_guards());
  examination.demand(ids.check_guards());
  examination.demand(ws.check());
  return {partial.copy(), ids.copy(), weights.copy()};
}

std::vector<float> floats(const std::vector<uint8_t>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

}  // namespace

void prove(const Moe& backend, const MoeProblem& p, int budget) {
  ThreadTeam team(1);
  ProofEntry entry;
  Examination examination(entry);
  try {
    for (const MoeCase& c : moe_cases(p, 1, budget, Layout::kP64)) {
      if (c.rows > backend.most_rows) continue;
      set_order(static_cast<uint64_t>(c.rows));
      examination.begin(c.kind);
      const oracle::Options options{.numerics = {.h = Rounds::kBf16}, .exact = c.exact};
      Launched given;
      if (!c.given.empty()) {
        given.ids.resize(c.given.size() * 4);
        std::memcpy(given.ids.data(), c.given.data(), given.ids.size());
        const auto weights =
            oracle::route(p, c.weights->raw, c.x.view(), iota_rows(c.rows), c.given.data(), options).weights;
        const std::vector<float> narrow(weights.value.begin(), weights.value.end());
        given.weights.resize(narrow.size() * 4);
        std::memcpy(given.weights.data(), narrow.data(), given.weights.size());
      }
      const Launched first = launch(backend, p, c, c.x, c.given.empty() ? nullptr : &given, 0, examination);
      const auto* ids = reinterpret_cast<const int32_t*>(first.ids.data());
      const Expected expected = oracle::moe(p, c.weights->raw, c.x.view(), iota_rows(c.rows), ids, options);
      if (c.exact)
        examination.judge_exact("partial", expected, floats(first.partial));
      else
        examination.judge_elements("partial", expected, floats(first.partial));
      if (!c.generic || c.rows < 2 || !c.given.empty()) continue;
      CaseInput beside = c.x.copy();
      for (int r = 1; r < c.rows; r += 2) beside.fill_row_nan(r);
      const Launched same_routes = launch(backend, p, c, beside, &first, 1, examination);
      examination.judge_same(VerdictCode::kRowDependent, "partial", first.partial, same_routes.partial,
                             int64_t{p.hidden} * 4, 2);
    }
    EXPECT_GE(entry.comparisons, backend.comparisons);
    EXPECT_LT(entry.max_error, 4);
  } catch (const ProofFailure& f) {
    ADD_FAILURE() << p.text() << ": " << name_of(f.verdict.code) << " " << f.verdict.sentence;
  }
}

}  // namespace modelled

// What faults are made of: the healthy backends with memory of their own, and where an op's output lies.
#pragma once
#include <cstring>
#include <vector>

#include "ops/dispatch.h"
#include "prove/trial.h"

namespace mettle::mutants {

inline int rows_of(const EmbedArgs& a) { return a.rows; }
inline int rows_of(const JoinArgs& a) { return a.rows; }
inline int rows_of(const LinearArgs& a) { return a.rows; }
inline int rows_of(const MoeArgs& a) { return a.rows; }
inline int rows_of(const SampleArgs& a) { return a.rows; }
inline int rows_of(const AttentionArgs& a) { return a.batch->rows; }
inline int rows_of(const GdnArgs& a) { return a.batch->rows; }

// The main output.
struct Grid {
  float* data;
  int64_t rows, cols;
  float* row(int64_t r) const { return data + r * cols; }
  float& at(int64_t r, int64_t c) const { return data[r * cols + c]; }
  int64_t size() const { return rows * cols; }
};
inline Grid out_of(const EmbedArgs& a) { return {a.residual.as<float>(), a.rows, a.problem.hidden}; }
inline Grid out_of(const JoinArgs& a) { return {a.residual.as<float>(), a.rows, a.problem.hidden}; }
inline Grid out_of(const LinearArgs& a) { return {a.y.as<float>(), a.rows, a.problem.out}; }
inline Grid out_of(const MoeArgs& a) { return {a.partial.as<float>(), a.rows, a.problem.hidden}; }
inline Grid out_of(const AttentionArgs& a) { return {a.partial.as<float>(), a.batch->rows, a.problem.hidden}; }
inline Grid out_of(const GdnArgs& a) { return {a.partial.as<float>(), a.batch->rows, a.problem.hidden}; }

// A backend of this machine's CPU by name, or null.
template <class Op>
const Backend<Op>* cpu_backend(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>()) {
    if constexpr (requires { b->kind; }) {
      if (static_cast<int>(b->kind) != 0) continue;
    }
    if (b->name == name) return b;
  }
  return nullptr;
}
template <class Op>
const Backend<Op>& slow_of() {
  return *cpu_backend<Op>("reference");
}
// What faults outside of a kernel wrap: the fastest that reads tile16, which misread weights are made in.
template <class Op>
const Backend<Op>& fast_of() {
  for (const std::string_view name : {"cpu_gemm", "cpu"})
    if (const Backend<Op>* b = cpu_backend<Op>(name))
      if (b->layout == slow_of<Op>().layout) return *b;
  return slow_of<Op>();
}

template <class Args>
concept HasWorkspace = requires(Args a) {
  a.ws;
};

// Runs a backend with a workspace of its own: an altered problem may need another one.
template <class Op>
void run_with_own_workspace(const Backend<Op>& backend, const Tactic& tactic, typename Op::Args args, Stream& stream) {
  Buffer ws(workspace_bytes(backend, tactic, args.problem, rows_of(args), stream.team->members()));
  if constexpr (HasWorkspace<typename Op::Args>) args.ws = {ws.data(), ws.size()};
  backend.run(tactic, args, stream);
}

template <class Op>
void right(const Tactic& tactic, const typename Op::Args& args, Stream& stream) {
  run_with_own_workspace(fast_of<Op>(), tactic, args, stream);
}

}  // namespace mettle::mutants

// Backends with a planted fault each, all in one build; a fault is switched on by choosing its backend. The proofs must
// find every one of them. No production backend knows of this: a fault wraps a healthy backend or is a faulty copy of
// the reference.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "prove/candidates.h"

namespace mettle::mutants {

template <class Op>
struct Fault {
  std::string_view name;
  void (*run)(const Tactic&, const typename Op::Args&, Stream&);
  std::string_view of = {};  // the backend whose declaration it has; else that of the op's fastest plain one
};

// Of one op, in a fixed order; each defined in the op's own file.
template <class Op>
std::span<const Fault<Op>> faults_of();

// The faulty copies of the reference with no fault switched on: they must pass, else a copy is no witness.
template <class Op>
std::span<const Fault<Op>> copies_of();

// Those of the other methods, in files of their own; each list begins with the copy that has none.
std::span<const Fault<AttentionOp>> attention_tiled_faults();
std::span<const Fault<GdnOp>> gdn_chunked_faults();
std::span<const Fault<SampleOp>> sample_shared_faults();

// A fault under the name of its backend; the problems of both geometries.
struct Name {
  std::string_view op, name;
  bool operator==(const Name&) const = default;
};
std::vector<Name> all_faults();

// The planted backends that `wanted` says yes to, and no other.
Candidates planted(const std::function<bool(const Name&)>& wanted);
// All healthy backends of the CPU, and the copies without a fault.
Candidates healthy();

// Whether the fault can be seen in this problem: those of an E4M3 cache in problems with one, all others elsewhere.
bool shows(std::string_view fault, const AnyProblem& problem);

// Slices of a model's geometry: real widths where a kernel's loops run, fewer heads, experts' columns and vocabulary.
struct Geometry {
  std::string_view name;
  std::vector<AnyProblem> problems;  // one per op
};
const std::vector<Geometry>& geometries();
// "odd": other formats, and sizes that no vector divides, several an op. For mechanical changes of the sources, whose
// tails and formats the models above never reach.
const Geometry& odd_shapes();

}  // namespace mettle::mutants

// What the float64 oracle says about an output: per element the value before the output rounding with every replayable
// declared rounding applied, and three error terms. Source of the terms: docs/proofs.md.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace mettle {

struct Expected {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;  // of the output that is judged
  std::vector<double> value;  // [rows * cols]
  std::vector<double> sys;    // one sigma of errors that may share a sign: accumulation order, exp, rsqrt, division
  std::vector<double> rnd;    // one sigma of declared roundings that cannot be replayed
  std::vector<double> jump;   // hard bound of replayed roundings that may fall the other way (near ties)
  bool shared = false;        // rows share errors (recurrent state): no averaging over rows

  Expected() = default;
  Expected(int64_t rows, int64_t cols, DType dtype)
      : rows(rows),
        cols(cols),
        dtype(dtype),
        value(static_cast<size_t>(rows * cols)),
        sys(value.size()),
        rnd(value.size()),
        jump(value.size()) {}
};

}  // namespace mettle

// The two products of a layer's experts alone: gate_up with SwiGLU, and down, as the kernels that group rows by expert
// run them in one pass. Every expert has its own weights (of the 35B shape 453 MB: they come from memory) and takes as
// many rows as the others.
#pragma once
#include <string>
#include <vector>

#include "ops/moe.h"

namespace mettle::bench {

struct MoeProductTime {
  std::string tactic;
  int rows_per_expert = 0, rows = 0;
  double us = 0, gate_up_us = 0, down_us = 0;  // medians, clocks as a long run has them
  double short_us = 0;                         // the same pair after a pause
  double tflops = 0;                           // 2 rows top_k (gate + up + down) / us
};

// Shape of the config's experts in nvfp4. Fails with kInvalidRequest when it has none.
MoeProblem moe_shape(const std::string& config_folder);
// Every tactic that multiplies groups of experts here. Fails with kDevice without a GPU.
std::vector<MoeProductTime> time_moe_products(const MoeProblem& shape, const std::vector<int>& rows_per_expert,
                                              const std::string& device);

}  // namespace mettle::bench

// What multiplies tiles of many rows: mma.sync (SM80 and newer) or wgmma (SM90 alone); of experts also the kernel that
// streams them past few rows each (moe_stream.h), the one that holds up to 16 rows (moe_direct.h) and, SM90,
// the one between (moe_wide.h).
#pragma once
#include <vector>

#include "ops/backend.h"
#include "ops/cuda/targets.h"

namespace mettle::cuda {

enum class TileEngine : int { kMma, kWgmma, kStream, kWide, kDirect };  // Tactic::variant

// wgmma is code for 90a and nothing else; a build without CUDA speaks of one that has it.
inline bool wgmma_built() { return cuda_targets().empty() || cuda_targets().find("90a") != std::string_view::npos; }

inline std::vector<Tactic> tile_tactics(const Device& device) {
  std::vector<Tactic> all = {{.name = "mma", .variant = static_cast<int>(TileEngine::kMma)}};
  if (device.sm == 90 && wgmma_built())
    all.push_back({.name = "wgmma", .variant = static_cast<int>(TileEngine::kWgmma)});
  return all;
}

}  // namespace mettle::cuda

// What multiplies tiles of many rows: mma.sync (SM80 and newer) or wgmma (SM90 alone).
#pragma once
#include <vector>

#include "ops/backend.h"

namespace mettle::cuda {

enum class TileEngine : int { kMma, kWgmma };  // Tactic::variant

inline std::vector<Tactic> tile_tactics(const Device& device) {
  std::vector<Tactic> all = {{.name = "mma", .variant = static_cast<int>(TileEngine::kMma)}};
  if (device.sm == 90) all.push_back({.name = "wgmma", .variant = static_cast<int>(TileEngine::kWgmma)});
  return all;
}

}  // namespace mettle::cuda

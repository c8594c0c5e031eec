#include "ops/cuda/targets.h"

#include <charconv>

namespace mettle {
namespace {

#ifdef METTLE_CUDA_TARGETS
constexpr std::string_view kTargets = METTLE_CUDA_TARGETS;
#else
constexpr std::string_view kTargets;
#endif

bool target_runs_on(std::string_view target, int sm) {
  int built = 0;
  const auto [at, error] = std::from_chars(target.data(), target.data() + target.size(), built);
  if (error != std::errc()) return true;
  const std::string_view rest(at, target.data() + target.size());
  const bool same_family = sm / 10 == built / 10 && sm >= built;
  if (rest.starts_with("a")) return sm == built;
  if (rest.starts_with("f") || rest == "-real") return same_family;
  return sm >= built;
}

}  // namespace

std::string_view cuda_targets() { return kTargets; }

bool targets_run_on(std::string_view targets, int sm) {
  while (!targets.empty()) {
    const size_t space = targets.find(' ');
    const std::string_view target = targets.substr(0, space);
    if (!target.empty() && target_runs_on(target, sm)) return true;
    targets.remove_prefix(space == std::string_view::npos ? targets.size() : space + 1);
  }
  return false;
}

}  // namespace mettle

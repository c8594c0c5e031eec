// Figures of a server that answers right: a closed loop at each concurrency of the plan, power and clocks beside it.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "sweep/plan.h"
#include "sweep/result.h"

namespace mettle::sweep {

struct BenchResult {
  std::vector<BenchPoint> points;
  std::string error;  // the first request that failed, empty: none
  std::vector<std::string> notes;
  bool stopped = false;
};

BenchResult measure(const std::string& base_url, const ServerPlan& server, const std::string& model,
                    const BenchPlan& plan, const std::atomic<bool>* stop,
                    const std::function<void(const std::string&)>& say);

// Prompts that no cache has seen, the same ones in every cell.
std::vector<std::string> random_prompts(const BenchPlan& plan, int concurrency, int count);

}  // namespace mettle::sweep

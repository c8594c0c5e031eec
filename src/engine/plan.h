// The plan: what the device can do, what goes where, before anything is read. Refuses, with numbers, what cannot work.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "models/model.h"

namespace mettle {

inline constexpr int kBlockSize = 16;  // positions of a paged block

// Fails with kUnsupported, naming the option, when that kind of device does not do what is asked for.
void check_device_options(const EngineOptions& options, DeviceKind device);

// Lines of the plan about formats that are not the checkpoint's own; empty when there are none.
std::string formats_text(const EngineOptions& options, const ModelInfo& info);

// Rows of one step where the options leave them open: 512, and on a GPU 2,048 (H200, 35B shape, prefill of 8,192
// tokens: 35,288 tokens/s instead of 21,570) if their scratch takes at most a 16th of `room`. Deterministic steps have
// one shape whatever is in them, so they stay short, with room for a whole chunk beside the decode rows.
int step_rows(const EngineOptions& options, DeviceKind device, int64_t room,
              const std::function<int64_t(int rows)>& scratch_bytes);

struct CacheBytes {  // of all ranks together
  int64_t per_token = 0, per_slot = 0;
};
CacheBytes cache_bytes_of(std::span<const std::unique_ptr<Model>> ranks);

struct CachePlan {
  int context = 0;      // tokens of one sequence at most
  int max_running = 0;  // state slots may allow fewer than the options
  int64_t blocks = 0, slots = 0;
  int64_t kv_bytes = 0, state_bytes = 0;
};
// Fails with kDevice when the cache cannot hold one context that was asked for.
CachePlan plan_caches(const EngineOptions& options, int64_t cache_bytes, const ModelInfo& info,
                      const CacheBytes& bytes);

struct MemoryPlan {
  WeightBytes weights;
  int64_t scratch_bytes = 0;
  CachePlan caches;
  int64_t available = 0;  // now, on this machine
  int64_t total() const { return weights.total() + scratch_bytes + caches.kv_bytes + caches.state_bytes; }
  std::string text() const;
};
// Caches whose size was asked for, rather than what is left.
bool asks_for_caches(const EngineOptions& options);

// Memory that steps may take their scratch from: what caches of a size that was asked for, planned already, leave
// beside the weights; or what is shared with caches that take the rest, up to nine tenths of a GPU's memory.
int64_t room_of_steps(const EngineOptions& options, const MemoryPlan& plan);

// Fails with kDevice when more is planned than there is.
void check_memory(const MemoryPlan& plan);

// What a GPU's memory came to, once everything is in place. `taken` is the engine's own count of what it has from the
// driver. What the driver had free before and has now is told beside it: other programs move that too, and so does what
// the driver kept of an earlier engine, so it is nobody's own.
std::string taken_text(int64_t taken, int64_t planned, int64_t free_before, int64_t free_now);

// What this process may still take: MemAvailable, or what its cgroup leaves if that is less.
int64_t available_memory();

}  // namespace mettle

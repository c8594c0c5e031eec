#include "engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "engine/scheduler.h"

namespace mettle {
namespace {

std::string mib(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

// A file that holds one number; `otherwise` when it is not there or says "max".
int64_t number_in(const char* path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

void check_device_options(const EngineOptions& options, DeviceKind device) {
  if (device == DeviceKind::kCpu) return;
  if (options.tp_size > 1)
    fail(Code::kUnsupported, fmt::format("tp_size: must be 1 on a GPU, got {}", options.tp_size));
}

int step_rows(const EngineOptions& options, DeviceKind device, int64_t room,
              const std::function<int64_t(int rows)>& scratch_bytes) {
  constexpr int kShort = 512, kLong = 2048;
  if (options.step_tokens != 0) return options.step_tokens;
  if (options.deterministic) return std::max(kShort, options.max_running + kChunkGrid);
  return device == DeviceKind::kCuda && scratch_bytes(kLong) <= room / 16 ? kLong : kShort;
}

std::string formats_text(const EngineOptions& options, const ModelInfo& info) {
  std::string text;
  if (options.dense == DenseDtype::kFp8)
    text += info.requantised == 0
                ? "  dense   fp8: nothing to requantise, no dense matrix of the checkpoint is BF16\n"
                : fmt::format(
                      "  dense   fp8: {} BF16 matrices requantised at load, a scale for each row; the numbers are "
                      "no longer the checkpoint's\n",
                      info.requantised);
  if (options.kv_cache == CacheFormat::kE4M3)
    text += fmt::format("  kv      fp8_e4m3: scales of the checkpoint in {} of {} attention layers, 1 in the others\n",
                        info.scaled_layers, info.attention_layers);
  return text;
}

CacheBytes cache_bytes_of(std::span<const std::unique_ptr<Model>> ranks) {
  CacheBytes bytes;
  for (const auto& rank : ranks)
    for (const CacheEntry& entry : rank->caches())
      (entry.kind == CacheEntry::Kind::kPaged ? bytes.per_token : bytes.per_slot) += entry.bytes();
  return bytes;
}

CachePlan plan_caches(const EngineOptions& options, int64_t cache_bytes, const ModelInfo& info,
                      const CacheBytes& bytes) {
  CachePlan plan;
  const int wanted = options.context_length > 0 ? options.context_length : info.context;
  if (wanted > info.context)
    fail(Code::kInvalidRequest,
         fmt::format("context length: must be at most the model's {}, got {}", info.context, wanted));
  plan.max_running = options.max_running;
  if (bytes.per_slot > 0) {
    // State takes at most half of the cache, unless one slot needs more.
    if (options.cache_tokens == 0)
      plan.max_running =
          static_cast<int>(std::clamp<int64_t>(cache_bytes / 2 / bytes.per_slot, 1, options.max_running));
    plan.slots = plan.max_running;
    plan.state_bytes = plan.slots * bytes.per_slot;
  }
  const auto blocks_for = [](int64_t tokens) { return (tokens + kBlockSize - 1) / kBlockSize; };
  const int64_t block_bytes = std::max<int64_t>(bytes.per_token, 1) * kBlockSize;
  const int64_t useful = blocks_for(wanted) * plan.max_running;  // more than this is never asked for
  plan.blocks = options.cache_tokens > 0 ? options.cache_tokens / kBlockSize
                                         : std::max<int64_t>(cache_bytes - plan.state_bytes, 0) / block_bytes;
  plan.blocks = std::min({plan.blocks, useful, int64_t{INT32_MAX}});
  plan.context = wanted;
  const int64_t room = plan.blocks * kBlockSize;
  const std::string numbers = fmt::format("{} tokens fit ({} blocks of {}, {} bytes a token, {} for state)", room,
                                          plan.blocks, kBlockSize, bytes.per_token, mib(plan.state_bytes));
  if (room < wanted) {
    if (options.context_length > 0 || room < 2)
      fail(Code::kDevice, fmt::format("cache: must hold one context of {} tokens, {}", wanted, numbers));
    plan.context = static_cast<int>(room);
    log::warn("cache: the context is limited to {} tokens, the model's is {}: {}", room, wanted, numbers);
  }
  plan.kv_bytes = plan.blocks * kBlockSize * bytes.per_token;
  return plan;
}

std::string MemoryPlan::text() const {
  std::string text =
      fmt::format("  weights {} ({})\n  scratch {}\n", mib(weights.total()), weights.text(), mib(scratch_bytes));
  text += fmt::format("  kv      {} ({} blocks of {} tokens)\n", mib(caches.kv_bytes), caches.blocks, kBlockSize);
  if (caches.slots > 0) text += fmt::format("  state   {} ({} slots)\n", mib(caches.state_bytes), caches.slots);
  return text + fmt::format("  total   {} of {} available\n", mib(total()), mib(available));
}

bool asks_for_caches(const EngineOptions& options) { return options.cache_tokens > 0 || options.cache_bytes > 0; }

int64_t room_of_steps(const EngineOptions& options, const MemoryPlan& plan) {
  const int64_t all = asks_for_caches(options) ? plan.available : plan.available * 9 / 10;
  return all - plan.weights.total() - plan.caches.kv_bytes - plan.caches.state_bytes;
}

void check_memory(const MemoryPlan& plan) {
  if (plan.total() > plan.available)
    fail(Code::kDevice, fmt::format("memory: the plan needs {} bytes, {} are available\n{}", plan.total(),
                                    plan.available, plan.text()));
}

std::string taken_text(int64_t taken, int64_t planned, int64_t free_before, int64_t free_now) {
  const double over = 100 * (static_cast<double>(taken) / static_cast<double>(planned) - 1);
  const int64_t less = free_before - free_now;
  return fmt::format(
      "{} taken, {} planned ({:+.2f} %); the GPU has {} {} free than before, the driver's own and other programs' "
      "memory included",
      mib(taken), mib(planned), over, mib(std::abs(less)), less < 0 ? "more" : "less");
}

int64_t available_memory() {
  int64_t available = INT64_MAX;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) available = std::stoll(line.substr(13)) << 10;
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max", INT64_MAX);
  if (limit != INT64_MAX) {
    // Page cache counts as used there but gives way.
    int64_t cached = 0;
    std::ifstream stat("/sys/fs/cgroup/memory.stat");
    std::string key;
    for (int64_t value = 0; stat >> key >> value;)
      if (key == "active_file" || key == "inactive_file") cached += value;
    available = std::min(available, limit - number_in("/sys/fs/cgroup/memory.current", 0) + cached);
  }
  return std::max<int64_t>(available, 0);
}

}  // namespace mettle

#include "cli/bandwidth.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "base/thread_team.h"
#include "tensor/buffer.h"

namespace mettle {
namespace {

struct Card {
  std::string_view part;  // of the device's model
  double gb_per_second;
};
// NVIDIA's data sheets, in order: the first part that a model contains counts.
constexpr Card kCards[] = {
    {"GB300", 8000},        {"GB200", 8000},    {"B300", 8000},      {"B200", 8000},     {"GH200", 4800},
    {"H200", 4800},         {"H100 NVL", 3900}, {"H100 PCIe", 2000}, {"H100", 3350},     {"A100-PCIE-40", 1555},
    {"A100-SXM4-40", 1555}, {"A100", 2039},     {"L40S", 864},       {"L40", 864},       {"RTX PRO 6000", 1792},
    {"RTX PRO 5000", 1344}, {"RTX 5090", 1792}, {"RTX 5080", 960},   {"RTX 4090", 1008}, {"RTX 3090", 936},
    {"RTX 6000 Ada", 960},  {"RTX A6000", 768}, {"A10", 600},        {"L4", 300},        {"GB10", 273},
};

// Sums of 64-bit words: what is read cannot be left out, and adding is faster than any memory.
double measure(int threads) {
  constexpr int64_t kWords = int64_t{32} << 20;  // 256 MiB, beyond the caches of most machines
  const Buffer buffer(static_cast<size_t>(kWords) * sizeof(uint64_t));
  auto* words = const_cast<uint64_t*>(reinterpret_cast<const uint64_t*>(buffer.data()));
  ThreadTeam team(threads);
  share_out(&team, kWords, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) words[i] = static_cast<uint64_t>(i);
  });
  double best = std::numeric_limits<double>::infinity();
  std::atomic<uint64_t> sum{0};
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    share_out(&team, kWords, [&](int64_t begin, int64_t end) {
      uint64_t part[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8)
        for (int64_t j = 0; j < 8; ++j) part[j] += words[i + j];
      uint64_t all = 0;
      for (const uint64_t p : part) all += p;
      sum += all;
    });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return sum.load() == 0 ? 0 : static_cast<double>(kWords) * sizeof(uint64_t) / best;
}

}  // namespace

Bandwidth memory_bandwidth(const Device& device) {
  if (device.kind == DeviceKind::kCpu) {
    const int threads = usable_cores();
    return {measure(threads), fmt::format("measured here with {} threads", threads)};
  }
  for (const Card& card : kCards)
    if (device.model.find(card.part) != std::string::npos)
      return {card.gb_per_second * 1e9, fmt::format("data sheet of {}", card.part)};
  return {0, fmt::format("not known for {}", device.model)};
}

}  // namespace mettle

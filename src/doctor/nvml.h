// What the driver says of its GPUs, by its library libnvidia-ml.so.1, which is opened at run time in a child process: a
// broken driver may refuse, crash or hang, and none of that is ours. Every field is optional.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/nvml.h"

namespace mettle::doctor {

struct GpuProcess {
  int64_t pid = 0;
  int64_t bytes = -1;  // -1: not told
};

struct GpuFacts {
  int index = 0;
  std::string name, uuid, bus;  // bus: 00000000:01:00.0
  // Numbers by name: sm, memory_total, memory_used, power_mw, power_limit_mw, power_default_mw, power_most_mw,
  // clock_mhz, clock_most_mhz, temperature, throttle (bits of NVML), ecc, ecc_uncorrected, pcie_generation,
  // pcie_generation_most, pcie_width, pcie_width_most, persistence, compute_mode, mig
  std::map<std::string, int64_t> numbers;
  std::vector<GpuProcess> processes;
  std::optional<int64_t> number(const std::string& key) const;
};

struct PeerFacts {
  int a = 0, b = 0;
  int64_t status = -1;    // of NVML's P2P read capability, 0: ok
  int64_t ancestor = -1;  // NVML's topology level
};

struct LoadedLibrary {
  std::string name, path, error;  // path: after links; error: why it does not load
};

struct NvmlFacts {
  std::string failure;   // empty, or why there is nothing: a sentence
  int failure_code = 0;  // of NVML, when it gave one
  bool not_installed = false;
  std::string driver, library;
  int64_t cuda_version = 0;  // 13000
  std::vector<GpuFacts> gpus;
  std::vector<PeerFacts> peers;
  std::vector<LoadedLibrary> libraries;
};

struct NvmlOptions {
  std::string library = Nvml::kLibrary;
  int deadline_ms = 20'000;
  std::vector<std::string> others;  // libraries to try to load
};
// Never fails and never takes longer than the deadline.
NvmlFacts ask_nvml(const NvmlOptions& options);

}  // namespace mettle::doctor

// The device a plan is for, as a value: supports() answers for any device, present or not.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Bf16 };
std::string_view name_of(Isa isa);  // scalar avx2 avx512 avx512bf16

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name = "cpu";  // "cpu", "sm90", ...
  std::string model;         // "AMD EPYC ...", "NVIDIA H200": keys the verdict store
  std::vector<Isa> isas;     // instruction sets this CPU has; kScalar always
  bool has(Isa isa) const;

  // kCuda only.
  int index = 0;                // among the visible devices
  int sm = 0;                   // 90: compute capability 9.0
  int multiprocessors = 0;      // 132
  size_t shared_per_block = 0;  // bytes a block may opt in to
  int64_t memory = 0;           // bytes in all
  std::string driver;           // "580.95", keys the verdict store
};

// This machine's CPU. METTLE_CPU_ISA=NAME hides every set above NAME; an unknown name is a kInvalidRequest error that
// lists the known ones.
Device this_cpu();

}  // namespace mettle

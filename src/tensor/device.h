// The device a plan is for, as a value: supports() answers for any device, present or not.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Bf16 };
std::string_view name_of(Isa isa);  // scalar avx2 avx512 avx512bf16

struct Device {
  std::string name = "cpu";  // "cpu", "sm90", ...
  std::string model;         // "AMD EPYC ...": keys the verdict store
  std::vector<Isa> isas;     // instruction sets this CPU has; kScalar always
  bool has(Isa isa) const;
};

// This machine's CPU. METTLE_CPU_ISA=NAME hides every set above NAME; an unknown name is a kInvalidRequest error that
// lists the known ones.
Device this_cpu();

}  // namespace mettle

#include "tensor/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace mettle {
namespace {

constexpr std::string_view kIsaNames[] = {"scalar", "avx2", "avx512", "avx512bf16"};

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, model = "unknown CPU", family;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) model = line.substr(colon + 2);
    if (line.starts_with("cpu family")) family += " family " + line.substr(colon + 2);
    if (line.starts_with("model\t")) family += " model " + line.substr(colon + 2);
    if (line.starts_with("flags")) break;
  }
  return model + family;
}

}  // namespace

std::string_view name_of(Isa isa) { return kIsaNames[static_cast<size_t>(isa)]; }

bool Device::has(Isa isa) const { return std::find(isas.begin(), isas.end(), isa) != isas.end(); }

Device this_cpu() {
  Device device{.model = cpu_model(), .isas = {Isa::kScalar}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) device.isas.push_back(Isa::kAvx2);
  if (device.has(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    device.isas.push_back(Isa::kAvx512);
  if (device.has(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16")) device.isas.push_back(Isa::kAvx512Bf16);
#endif
  if (const char* limit = std::getenv("METTLE_CPU_ISA")) {
    const auto* it = std::find(std::begin(kIsaNames), std::end(kIsaNames), std::string_view(limit));
    if (it == std::end(kIsaNames))
      fail(Code::kInvalidRequest,
           fmt::format("METTLE_CPU_ISA: must be one of {}, got \"{}\"", fmt::join(kIsaNames, ", "), limit));
    const Isa top = static_cast<Isa>(it - std::begin(kIsaNames));
    std::erase_if(device.isas, [&](Isa isa) { return isa > top; });
  }
  return device;
}

}  // namespace mettle

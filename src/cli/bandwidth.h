// How fast a device reads its memory: from data sheets for GPUs, measured for this CPU.
#pragma once
#include <string>

#include "tensor/device.h"

namespace mettle {

struct Bandwidth {
  double bytes_per_second = 0;  // 0: not known
  std::string source;           // "data sheet of NVIDIA H200", "measured here, 2 threads"
};
Bandwidth memory_bandwidth(const Device& device);

}  // namespace mettle

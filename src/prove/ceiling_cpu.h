#pragma once
#include "prove/ceiling.h"

namespace mettle {

Ceiling probe_cpu(const Device& device, int threads);

}  // namespace mettle

#include "together.h"

METTLE_TOGETHER(dynamic)
#define launch launch_together
#include "ops/cuda/moe_fused_small.cu"

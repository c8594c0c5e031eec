#include "together.h"

METTLE_TOGETHER(memory)
#define launch launch_together
#include "ops/cuda/moe_fused_rows.cu"

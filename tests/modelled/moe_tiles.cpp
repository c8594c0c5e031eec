#include "ops/cuda/moe_tiles.cu"

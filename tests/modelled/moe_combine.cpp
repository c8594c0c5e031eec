#define __CUDACC__ 1  // its header has device code for kernels alone
#include "ops/cuda/moe_combine.cu"

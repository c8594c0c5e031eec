#include "ops/cuda/gdn_chunk_conv.cu"

#include "ops/cuda/gdn_chunk_prepare.cu"

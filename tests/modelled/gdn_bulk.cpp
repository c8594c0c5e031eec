#include "ops/cuda/gdn_bulk.cu"

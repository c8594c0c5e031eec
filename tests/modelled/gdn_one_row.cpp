#include "ops/cuda/gdn_one_row.cu"

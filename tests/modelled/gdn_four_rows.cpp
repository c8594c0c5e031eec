#include "ops/cuda/gdn_four_rows.cu"

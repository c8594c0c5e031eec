#include "ops/cuda/gdn_recurrent.cu"

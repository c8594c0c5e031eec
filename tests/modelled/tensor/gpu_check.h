// CUDA_CHECK stands with the runtime.
#pragma once
#include "cuda_runtime.h"

// embed on a GPU: launcher of its kernel.
#pragma once
#include "ops/embed.h"

struct CUstream_st;

namespace mettle::cuda {

void embed(const EmbedArgs& args, CUstream_st* stream);

}  // namespace mettle::cuda

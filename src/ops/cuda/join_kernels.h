// join on a GPU: launchers of its kernels.
#pragma once
#include "ops/join.h"

struct CUstream_st;

namespace mettle::cuda {

constexpr int kJoinRanks = 8;          // pointers that travel with the launch
constexpr int kJoinFusedMost = 16384;  // hidden: four float4 of each of 1024 threads stay in registers

void join_reference(const JoinArgs& args, CUstream_st* stream);
void join_fused(const JoinArgs& args, CUstream_st* stream);  // hidden a multiple of 4

}  // namespace mettle::cuda

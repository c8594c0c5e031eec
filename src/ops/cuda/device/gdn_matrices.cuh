// Matrices of 8x8 bf16 out of shared memory, and words of two bf16.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::ptx {

// Lane l names row l % 8 of matrix l / 8, 16 bytes; word m of a lane is of matrix m, as it lies or transposed.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// Rounded to nearest even, `first` in the lower half. One instruction, where two single roundings take sixteen clocks.
__device__ __forceinline__ uint32_t pack_bf16(float first, float second) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(second), "f"(first));
  return r;
}

}  // namespace mettle::ptx

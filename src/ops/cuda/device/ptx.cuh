// PTX wrappers that several kernels need: streaming loads, mma, programmatic dependent launch.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::ptx {

// 16 bytes of weights: read once, so they go past L1. `ok` false reads nothing and gives zeros. No ld.global.nc: ptxas
// moves those behind wait(), and what should arrive while the kernel before still runs is only asked for when it ended.
__device__ __forceinline__ uint4 load_weight(const void* p, bool ok) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred q;\nsetp.ne.u32 q,%5,0;\nmov.u32 %0,0;mov.u32 %1,0;mov.u32 %2,0;mov.u32 %3,0;\n"
      "@q ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<uint32_t>(ok))
      : "memory");
  return v;
}

// 16 bytes of activations: written by the kernel before this one, so an ordinary load that stays behind wait().
__device__ __forceinline__ uint4 load_activation(const void* p, bool ok) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred q;\nsetp.ne.u32 q,%5,0;\nmov.u32 %0,0;mov.u32 %1,0;mov.u32 %2,0;mov.u32 %3,0;\n"
      "@q ld.global.v4.u32 {%0,%1,%2,%3},[%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"(static_cast<uint32_t>(ok))
      : "memory");
  return v;
}

// Asynchronous copies to shared memory, done when the group they were committed in is waited for; `ok` false reads
// nothing and writes zeros. A thread waits until at most N of its latest groups are not done.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool ok) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(ok ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool ok) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(ok ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// bf16 pair product; exact where the product fits, subnormals included (mul.bf16x2 needs SM90; the fma form does SM80).
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));  // + -0.0 keeps the sign of zero
#endif
  return r;
}

// d[16x8] += a[16x16] b[16x8], bf16 in, float32 accumulate.
__device__ __forceinline__ void mma_16816(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Programmatic dependent launch: let the next kernel start; wait until the one before has finished and is visible.
__device__ __forceinline__ void trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

}  // namespace mettle::ptx

// A barrier in shared memory for what asynchronous copies bring (SM80 and newer): threads arrive by themselves once
// the copies that they have asked for are there.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::ptx {

struct CopyBarrier {
  uint64_t state;
};
namespace copy_barrier {

__device__ __forceinline__ uint32_t address(CopyBarrier& b) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(&b));
}
__device__ __forceinline__ void init(CopyBarrier& b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(address(b)), "r"(arrivals) : "memory");
}
// What this thread wrote before is seen by who has waited.
__device__ __forceinline__ void arrive(CopyBarrier& b) {
  asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s,[%0];\n}\n" ::"r"(address(b)) : "memory");
}
// One arrival, when all copies of this thread so far are there.
__device__ __forceinline__ void arrive_when_copied(CopyBarrier& b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address(b)) : "memory");
}
// Until the round of that parity is over; the first has parity 0.
__device__ __forceinline__ void wait(CopyBarrier& b, uint32_t parity) {
  uint32_t over = 0;
  while (over == 0)
    asm volatile(
        "{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 p,[%1],%2;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 p,[%1],%2;\n"
#endif
        "selp.u32 %0,1,0,p;\n}\n"
        : "=r"(over)
        : "r"(address(b)), "r"(parity)
        : "memory");
}

}  // namespace copy_barrier
}  // namespace mettle::ptx

// In a program without CUDA; with it see take_ids.cu.
#include "ops/cuda/take_ids.h"

#include "base/error.h"

namespace mettle::cuda {

#if !METTLE_CUDA
void take_ids(int32_t*, const SampleResult*, int, void*) {
  fail(Code::kDevice, "take_ids: this program was built without CUDA (cmake --preset cuda)");
}
#endif

}  // namespace mettle::cuda

#include "ops/cuda/profile_range.h"

#if METTLE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace mettle {

#if METTLE_CUDA
ProfileRange::ProfileRange(std::string_view literal) { nvtxRangePushA(literal.data()); }
ProfileRange::~ProfileRange() { nvtxRangePop(); }
#else
ProfileRange::ProfileRange(std::string_view) {}
ProfileRange::~ProfileRange() = default;
#endif

}  // namespace mettle

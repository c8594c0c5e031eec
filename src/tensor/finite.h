// Which rows hold a value that is not finite. One pass over bits, no float comparison: NaN and infinity have all
// exponent bits set.
#pragma once
#include <cstdint>

#include "tensor/tensor_view.h"

namespace mettle {

inline constexpr int32_t kUnmarked = INT32_MAX;

// values [n, ...] f32 or bf16: where row i is not finite, marks[rows[i]] (rows null: marks[i]) becomes `mark`, unless
// a lower one stands there.
void mark_not_finite(const TensorView& values, const int32_t* rows, int32_t mark, int32_t* marks);

namespace gpu {
// The same, enqueued; rows lie on the device, marks in memory that it writes (Place::take_shared).
void mark_not_finite(const TensorView& values, const int32_t* rows, int32_t mark, int32_t* marks, void* stream);
}  // namespace gpu

}  // namespace mettle

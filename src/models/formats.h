// What dense weights become at load. Both formats that this program makes of a checkpoint's own (this one, and
// CacheFormat of ops/attention.h) change numbers, so they are asked for, never chosen.
#pragma once
#include <cstdint>
#include <string_view>

namespace mettle {

// kAuto: as the checkpoint has them. kFp8: BF16 becomes E4M3 with a float32 scale for each row (docs/ops.md).
enum class DenseDtype : uint8_t { kAuto, kFp8 };
constexpr std::string_view name_of(DenseDtype dtype) { return dtype == DenseDtype::kFp8 ? "fp8" : "auto"; }

}  // namespace mettle

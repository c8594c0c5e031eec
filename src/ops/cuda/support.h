// What CUDA backends ask before they say yes. Plain host code: explain calls it for any device, in any build.
#pragma once
#include "ops/backend.h"
#include "ops/cuda/targets.h"

namespace mettle {

#if METTLE_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif

// WRONG_SM unless the device is a GPU of at least that compute capability (80: 8.0) and, in a build with CUDA, one that
// its code was built for.
inline Verdict cuda_device(const Device& device, int least_sm) {
  if (device.kind != DeviceKind::kCuda || device.sm < least_sm)
    return refuse(VerdictCode::kWrongSm, device.name, "sm" + std::to_string(least_sm) + " or newer");
  if (kCudaBuilt && !targets_run_on(cuda_targets(), device.sm))
    return refuse(VerdictCode::kWrongSm, device.name, "built for " + std::string(cuda_targets()),
                  "this program was built for other GPU architectures than this device",
                  "build with METTLE_CUDA_ARCHITECTURES for " + device.name);
  return {};
}

// The last question of supports(): is the code for it in this program.
inline Verdict cuda_built() {
  if (kCudaBuilt) return {};
  return refuse(VerdictCode::kNotBuilt, "a build without CUDA", "a build with METTLE_CUDA",
                "this program was built without its CUDA code");
}

// FORMAT_UNSUPPORTED or SHAPE_UNSUPPORTED unless p64 has a form for it.
inline Verdict cuda_weight(const char* what, WeightFormat format, int64_t cols) {
  if (p64_holds(format, cols)) return {};
  if (cols % 16 != 0)
    return refuse(VerdictCode::kShapeUnsupported, std::string(what) + " of " + std::to_string(cols) + " columns",
                  "a multiple of 16");
  return refuse(VerdictCode::kFormatUnsupported, std::string(what) + " in " + std::string(name_of(format)),
                "nvfp4, bf16 or fp8");
}

// FORMAT_UNSUPPORTED for float32 activations.
inline Verdict cuda_activation(Activation activation) {
  if (activation == Activation::kBf16) return {};
  return refuse(VerdictCode::kFormatUnsupported, std::string(name_of(activation)) + " activations", "bf16 activations");
}

}  // namespace mettle

// The tensors of one module in a checkpoint and the format they make, whatever exporter wrote them. Only names, dtypes
// and shapes are looked at.
//   found                                                       format
//   weight U8 + weight_scale F8_E4M3 + weight_scale_2           NVFP4 as ModelOpt writes it (global is a multiplier)
//   weight_packed U8 + weight_scale F8_E4M3 + weight_global_scale   NVFP4 as compressed-tensors does (global divides)
//   weight F8_E4M3 + weight_scale_inv                           FP8 in blocks of 128 x 128 (multiplies despite "inv")
//   weight F8_E4M3 + weight_scale                               FP8 per tensor, channel or block, by the scale's shape
//   weight BF16, F16, F32, F64                                  as it is
// Fused experts have no ".weight": "experts.gate_up_proj" with "_weight_scale" or "_scale" and so on behind it.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/safetensors.h"
#include "tensor/weight.h"

namespace mettle {

struct ModuleTensors {
  std::string module;
  const StoredTensor* weight = nullptr;
  const StoredTensor* scale = nullptr;   // block scales, or the scale of FP8
  const StoredTensor* global = nullptr;  // NVFP4 only
  bool global_divides = false;
  WeightFormat format = WeightFormat::kBf16;
  std::string unsupported;  // not empty: the format's name, no backend reads it
  std::string damaged;      // not empty: what is missing or of the wrong type

  int64_t rows() const;  // all but the last size multiplied
  int64_t cols() const;  // weights in a row, not bytes
};

// Nothing when the checkpoint has no such module.
std::optional<ModuleTensors> module_tensors(const Safetensors& file, const std::string& module);

// The module that a tensor is the weight of; empty when it is no weight of a matrix (scales, vectors, 1-D tensors).
std::string_view module_of_weight(const StoredTensor& tensor);
// The module that a scale or another companion belongs to; empty for any other tensor.
std::string_view module_of_companion(std::string_view tensor);
// Scales of the KV cache: they belong to a layer rather than to a matrix, and only a cache of codes needs them.
bool is_cache_scale(std::string_view tensor);

}  // namespace mettle

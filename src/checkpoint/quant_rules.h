// Which format the config says a module has: ModelOpt (quant_algo, ignore / exclude_modules globs, quantized_layers)
// and compressed-tensors (config_groups, targets, ignore with "re:" patterns), FP8 (weight_block_size), none.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tensor/weight.h"

namespace mettle {

class QuantRules {
 public:
  // config: the whole config.json; the object under quantization_config, of its own or of its text_config, is read.
  // Fails with kBadModel/kUnsupported for an unknown quant_method or algorithm, naming it and the layer pattern it
  // applies to. ModelOpt's quantized_layers win over ignore, ignore over config_groups.
  explicit QuantRules(const nlohmann::json& config);
  QuantRules(QuantRules&&) noexcept;
  ~QuantRules();
  // Format the config promises for a linear module (never called for norms and other vectors).
  WeightFormat format_of(std::string_view module) const;
  WeightFormat plain() const;       // of modules that are not quantised: f32 or bf16, by the config's dtype
  std::string_view method() const;  // "modelopt", "compressed-tensors", "fp8", "none"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mettle

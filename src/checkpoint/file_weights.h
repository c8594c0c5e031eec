// The weight source of a checkpoint on disk. Every tensor's values are checked when it is first handed out.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "checkpoint/quant_rules.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"

namespace mettle {

std::unique_ptr<WeightSource> file_weights(Safetensors file, QuantRules rules);

}  // namespace mettle

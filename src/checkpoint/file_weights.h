// The weight source of a checkpoint on disk. Every tensor's values are checked when it is first handed out.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "checkpoint/quant_rules.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"

namespace mettle {

std::unique_ptr<WeightSource> file_weights(Safetensors file, QuantRules rules);

// Element i of a float tensor as float32. Fails with kBadModel for another type.
float float_at(const StoredTensor& t, int64_t i);

}  // namespace mettle

#include "checkpoint/weight_source.h"

#include <nlohmann/json.hpp>

#include "checkpoint/file_weights.h"

namespace mettle {

std::unique_ptr<WeightSource> open_weights(const std::string& folder, const nlohmann::json& config) {
  QuantRules rules(config);  // before the files: a format nobody reads is refused without mapping anything
  return file_weights(Safetensors::open(folder), std::move(rules));
}

}  // namespace mettle

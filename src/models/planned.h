// Architectures that are read but not served yet: which of their ops exist and which are missing, and what is planned
// for those. For explain, which then says it op by op.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace mettle {

struct MissingOp {
  std::string op, problem;  // as a problem's text() would have it
  std::string need;         // what its code must do that no backend does
  std::string plan;
};

struct PlannedModel {
  std::string_view name;             // "glm_moe_dsa"
  std::vector<AnyProblem> problems;  // that exist
  std::vector<MissingOp> missing;    // in the order of a layer
};

// By "architectures" and "model_type"; nothing when it is none of them. Fails with kBadModel when its fields are wrong.
std::optional<PlannedModel> planned_model(const nlohmann::json& config, const ModelOptions& options);
// Whether it is one of them, without reading any other field.
bool is_planned_model(const nlohmann::json& config);

}  // namespace mettle

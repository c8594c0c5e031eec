// Problems as JSON, all fields: what the parent sends to the child.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "ops/problem.h"

namespace mettle {

nlohmann::json to_json(const AnyProblem& problem);
// Fails with kInvalidRequest when a field is missing, unknown or of another type.
AnyProblem problem_from_json(const nlohmann::json& json);

}  // namespace mettle

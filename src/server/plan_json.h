// The body of GET /v1/plan: per problem and row bucket what serves and what would take over, every candidate with its
// verdict, what is quarantined, what memory holds.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace mettle {

nlohmann::ordered_json plan_json(const std::string& model, const EngineInfo& info, const EngineStats& stats,
                                 const ServingPlan& serving);
std::string_view kv_cache_name(const EngineInfo& info);  // f32, bf16, fp8_e4m3
nlohmann::ordered_json quarantines_json(const ServingPlan& serving);

}  // namespace mettle

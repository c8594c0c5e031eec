// What the configs of the Qwen families have in common.
#pragma once
#include "checkpoint/model_folder.h"
#include "models/decoder.h"

namespace mettle {

// Fails with kUnsupported, naming the field, unless the field is absent or has that value: features that no released
// model of the family uses.
void expect_text(const ConfigReader& config, std::string_view key, std::string_view value);
void expect_boolean(const ConfigReader& config, std::string_view key, bool value);
void expect_all_sparse(const ConfigReader& config);  // no dense layer between the mixtures of experts

// theta and the rotated share of a head, from "rope_parameters", "rope_scaling" or the top level.
struct Rope {
  double theta = 10000;
  double partial = 1;
};
Rope read_rope(const ConfigReader& config);

// Vocabulary, width, layers, context, eps, attention heads, experts: the fields both families name alike.
void read_common(const ConfigReader& config, DecoderSpec& spec);

}  // namespace mettle

// The list of models (models.def). A model X is one file that defines `extern const ModelEntry model_X`.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_folder.h"
#include "models/model.h"

namespace mettle {

struct ModelEntry {
  std::string_view name;                      // as in models.def
  std::span<const std::string_view> types;    // values of "model_type" that mean it
  std::span<const std::string_view> classes;  // values in "architectures" that mean it
  // Reads the config and the formats of the weights; no weight data. Fails with kBadModel or kUnsupported.
  std::unique_ptr<Model> (*make)(const ConfigReader& config, WeightSource& source, const ModelOptions& options);
};

std::span<const ModelEntry* const> model_entries();
// By "architectures", else by "model_type". Fails with kUnsupported and lists the known ones.
const ModelEntry& find_model_entry(const nlohmann::json& config);

std::unique_ptr<Model> make_model(const nlohmann::json& config, WeightSource& source, const ModelOptions& options);
// Every problem that serving this model asks for, over all ranks; options.rank counts through them.
std::vector<AnyProblem> problems_of(const ModelFolder& folder, WeightSource& source, ModelOptions options = {});

}  // namespace mettle

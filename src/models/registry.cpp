#include "models/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "models/planned.h"

namespace mettle {

#define MODEL(name) extern const ModelEntry model_##name;
#include "models/models.def"
#undef MODEL

std::span<const ModelEntry* const> model_entries() {
  static const ModelEntry* const kList[] = {
#define MODEL(name) &model_##name,
#include "models/models.def"
#undef MODEL
  };
  return kList;
}

const ModelEntry& find_model_entry(const nlohmann::json& config) {
  const ConfigReader reader(config, "config");
  const std::vector<std::string> classes = reader.texts("architectures");
  const std::string type = reader.text("model_type", "");
  const auto among = [](std::span<const std::string_view> known, std::string_view what) {
    return std::find(known.begin(), known.end(), what) != known.end();
  };
  for (const ModelEntry* entry : model_entries())
    for (const std::string& c : classes)
      if (among(entry->classes, c)) return *entry;
  if (classes.empty())
    for (const ModelEntry* entry : model_entries())
      if (among(entry->types, type)) return *entry;
  std::string known;
  for (const ModelEntry* entry : model_entries())
    for (const std::string_view c : entry->classes) known += fmt::format("{}{}", known.empty() ? "" : ", ", c);
  std::string given;
  for (const std::string& c : classes) given += fmt::format("{}\"{}\"", given.empty() ? "" : ", ", c);
  fail(Code::kUnsupported, fmt::format("config.architectures: must be one of {}; got {} (model_type \"{}\"){}", known,
                                       given.empty() ? "none" : given, type,
                                       is_planned_model(config) ? "; `mettle explain` says which ops it lacks" : ""));
}

std::unique_ptr<Model> make_model(const nlohmann::json& config, WeightSource& source, const ModelOptions& options) {
  return find_model_entry(config).make(ConfigReader(config, "config"), source, options);
}

std::vector<AnyProblem> problems_of(const ModelFolder& folder, WeightSource& source, ModelOptions options) {
  std::vector<AnyProblem> all;
  const auto add = [&](const AnyProblem& problem) {
    if (std::find(all.begin(), all.end(), problem) == all.end()) all.push_back(problem);
  };
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    const auto model = make_model(folder.config, source, options);
    for (const AnyProblem& problem : model->problems()) add(problem);
    add(SampleProblem{.vocab = model->info().vocab, .usable = model->info().vocab});
  }
  return all;
}

}  // namespace mettle

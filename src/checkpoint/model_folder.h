// The files of a model beside its weights: where the folder is, config.json, generation settings, template, tokenizer.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

struct SamplingDefaults {  // of generation_config.json; absent fields keep the OpenAI defaults
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

struct ModelFolder {
  std::string path;              // existing folder
  std::string name;              // what /v1/models calls it: repo name or last path component
  nlohmann::json config;         // config.json as it is
  std::vector<int32_t> eos_ids;  // union of config, text_config, generation_config and tokenizer_config
  std::string eos_token_text;    // tokenizer_config's; its id is in eos_ids only when added_tokens_decoder has it
  SamplingDefaults sampling;
  std::string chat_template;   // chat_template.jinja, else tokenizer_config's; empty when there is none
  std::string tokenizer_path;  // tokenizer.json; empty when there is none
};

// model: "" (the embedded model: beside the program, METTLE_MODEL_DIR, or the source tree), a folder, a path to a
// config.json, or "owner/name" already downloaded into the Hugging Face cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME,
// ~/.cache). Never touches the network. Fails with kBadModel and what was looked at.
std::string find_model(const std::string& model);
// Reads the small files (each limited in size and depth); kBadModel when config.json is missing or malformed.
ModelFolder open_model_folder(const std::string& path);

// Typed reads of a JSON object with errors that name the field: "config.text_config.hidden_size: must be an integer in
// 1..65536, got \"abc\"".
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string path);
  bool has(std::string_view key) const;  // present and not null
  int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  int64_t integer(std::string_view key, int64_t least, int64_t most, int64_t otherwise) const;
  double number(std::string_view key, double least, double most) const;
  double number(std::string_view key, double least, double most, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key, std::string_view otherwise) const;
  std::vector<std::string> texts(std::string_view key) const;  // a list of strings; empty when absent
  std::vector<int64_t> integers(std::string_view key) const;   // an integer or a list of them; empty when absent
  ConfigReader child(std::string_view key) const;              // an object; fails when absent
  const nlohmann::json& json() const { return *object_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json* object_;
  std::string path_;
};

}  // namespace mettle

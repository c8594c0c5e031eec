#include "checkpoint/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "checkpoint/json_file.h"

namespace mettle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr JsonLimits kSmallFile{.bytes = size_t{1} << 20, .depth = 32};
constexpr int64_t kMaxTokenId = (int64_t{1} << 31) - 1;

// Only regular files: opening a pipe would wait for somebody to write into it.
bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

json read_optional(const std::string& path, JsonLimits limits = {}) {
  return is_file(path) ? read_json_object(path, limits) : json::object();
}

// hf_quant_config.json of ModelOpt, in the form that config.json has it.
json quantization_of(const std::string& path) {
  const json file = read_json_object(path);
  json merged = ConfigReader(file, path).child("quantization").json();
  merged["quant_method"] = "modelopt";
  if (file.contains("producer")) merged["producer"] = file["producer"];
  if (merged.contains("exclude_modules") && !merged.contains("ignore")) merged["ignore"] = merged["exclude_modules"];
  return merged;
}

bool has_quantization(const json& config) {
  const auto has = [](const json& c) {
    return c.contains("quantization_config") && !c["quantization_config"].is_null();
  };
  return has(config) ||
         (config.contains("text_config") && config["text_config"].is_object() && has(config["text_config"]));
}

void add_eos(std::vector<int32_t>& ids, const ConfigReader& reader) {
  for (const int64_t id : reader.integers("eos_token_id")) {
    if (id < 0 || id > kMaxTokenId)
      fail(Code::kBadModel, fmt::format("{}.eos_token_id: must be in 0..{}, got {}", reader.path(), kMaxTokenId, id));
    if (std::find(ids.begin(), ids.end(), static_cast<int32_t>(id)) == ids.end())
      ids.push_back(static_cast<int32_t>(id));
  }
}

SamplingDefaults sampling_of(const ConfigReader& reader) {
  SamplingDefaults s;
  if (reader.has("temperature")) s.temperature = reader.number("temperature", 0, 100);
  if (reader.has("top_p")) s.top_p = reader.number("top_p", 0, 1);
  if (reader.has("min_p")) s.min_p = reader.number("min_p", 0, 1);
  if (reader.has("repetition_penalty")) s.repetition_penalty = reader.number("repetition_penalty", 1e-3, 100);
  if (reader.has("top_k"))  // -1 and 0 both mean all tokens
    s.top_k = static_cast<int>(std::max<int64_t>(reader.integer("top_k", -1, kMaxTokenId), 0));
  return s;
}

// A special token: a string, or an object with its text under "content".
std::string token_text(const json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end()) return "";
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && (*at)["content"].is_string())
    return (*at)["content"].get<std::string>();
  return "";
}

void add_tokenizer_eos(ModelFolder& folder, const json& config, const std::string& path) {
  folder.eos_token_text = token_text(config, "eos_token");
  const auto tokens = config.find("added_tokens_decoder");
  if (folder.eos_token_text.empty() || tokens == config.end() || !tokens->is_object()) return;
  for (const auto& [id, token] : tokens->items()) {
    if (!token.is_object() || token_text(token, "content") != folder.eos_token_text) continue;
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos)
      fail(Code::kBadModel, fmt::format("{}: added_tokens_decoder: \"{}\" is not a token id", path, id.substr(0, 80)));
    const json number = {{"eos_token_id", std::stol(id)}};
    add_eos(folder.eos_ids, ConfigReader(number, path));
  }
}

std::string chat_template_of(const std::string& folder, const json& tokenizer_config) {
  const std::string own = folder + "/chat_template.jinja", wrapped = folder + "/chat_template.json";
  if (is_file(own)) return read_file(own, kMaxTemplateBytes);
  if (is_file(wrapped)) {
    const json file = read_json_object(wrapped, {.bytes = kMaxTemplateBytes, .depth = 8});
    return ConfigReader(file, wrapped).text("chat_template", "");
  }
  const auto at = tokenizer_config.find("chat_template");
  if (at == tokenizer_config.end() || at->is_null()) return "";
  if (at->is_string()) return at->get<std::string>();
  const std::string where = folder + "/tokenizer_config.json: chat_template";
  if (!at->is_array())
    fail(Code::kBadModel, fmt::format("{}: must be a string or a list, is {}", where, at->type_name()));
  for (const json& item : *at) {
    const ConfigReader reader(item, where);
    if (reader.text("name", "") == "default") return reader.text("template", "");
  }
  fail(Code::kBadModel, fmt::format("{}: a list of {} templates without one named \"default\"", where, at->size()));
}

// "models--owner--name/snapshots/<commit>" is called owner/name, anything else by its last component.
std::string name_of_folder(const fs::path& path) {
  const std::string repository = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() == "snapshots" && repository.starts_with("models--")) {
    const std::string name = repository.substr(8);
    const size_t dashes = name.find("--");
    if (dashes != std::string::npos) return name.substr(0, dashes) + "/" + name.substr(dashes + 2);
    return name;
  }
  return path.filename().string();
}

}  // namespace

ModelFolder open_model_folder(const std::string& path) {
  std::error_code error;
  fs::path real = fs::absolute(path, error).lexically_normal();
  if (!real.has_filename()) real = real.parent_path();  // "folder/"
  if (!fs::is_directory(real, error)) fail(Code::kBadModel, fmt::format("{}: must be a folder with config.json", path));
  ModelFolder folder;
  folder.path = real.string();
  folder.name = name_of_folder(real);
  const std::string config_path = folder.path + "/config.json";
  if (!is_file(config_path)) fail(Code::kBadModel, fmt::format("{}: is missing or no file", config_path));
  folder.config = read_json_object(config_path);
  const std::string quantization_path = folder.path + "/hf_quant_config.json";
  if (!has_quantization(folder.config) && is_file(quantization_path))
    folder.config["quantization_config"] = quantization_of(quantization_path);

  const ConfigReader config(folder.config, "config");
  add_eos(folder.eos_ids, config);
  if (config.has("text_config")) add_eos(folder.eos_ids, config.child("text_config"));
  const json generation = read_optional(folder.path + "/generation_config.json", kSmallFile);
  const ConfigReader generation_reader(generation, "generation_config");
  add_eos(folder.eos_ids, generation_reader);
  folder.sampling = sampling_of(generation_reader);

  const std::string tokenizer_config_path = folder.path + "/tokenizer_config.json";
  const json tokenizer_config = read_optional(tokenizer_config_path);
  add_tokenizer_eos(folder, tokenizer_config, tokenizer_config_path);
  folder.chat_template = chat_template_of(folder.path, tokenizer_config);
  if (folder.chat_template.size() > kMaxTemplateBytes)
    fail(Code::kBadModel, fmt::format("{}: chat template must be at most {} bytes, has {}", folder.path,
                                      kMaxTemplateBytes, folder.chat_template.size()));
  if (is_file(folder.path + "/tokenizer.json")) folder.tokenizer_path = folder.path + "/tokenizer.json";
  return folder;
}

}  // namespace mettle

#include "checkpoint/quant_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/name_pattern.h"

namespace mettle {
namespace {

using nlohmann::json;

const json* quantization_in(const json& config) {
  const auto at = config.find("quantization_config");
  if (at != config.end() && !at->is_null()) return &*at;
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? quantization_in(*text) : nullptr;
}

std::string dtype_in(const json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto at = config.find(key);
    if (at != config.end() && at->is_string()) return at->get<std::string>();
  }
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? dtype_in(*text) : "";
}

constexpr std::string_view kSupported =
    "NVFP4 W4A16_NVFP4 W4A8_NVFP4_FP8 FP8 FP8_PER_CHANNEL_PER_TOKEN FP8_PB_WO MIXED_PRECISION";

}  // namespace

struct QuantRules::Impl {
  struct Layer {
    NamePattern pattern;
    std::optional<WeightFormat> format;  // nothing: as the model's dtype says
  };
  std::string method = "none";
  WeightFormat plain = WeightFormat::kBf16;
  std::optional<WeightFormat> linear;  // of every linear module that nothing below names
  std::vector<Layer> layers;           // named ones, longest pattern first
  std::vector<NamePattern> ignored;

  // Nothing for "none". pattern: the modules it is for, for messages.
  static std::optional<WeightFormat> algorithm(const ConfigReader& reader, const std::string& pattern) {
    const std::string name = reader.text("quant_algo", "");
    if (name.empty() || name == "none" || name == "NONE") return std::nullopt;
    if (name == "NVFP4" || name == "W4A16_NVFP4" || name == "W4A8_NVFP4_FP8") {
      if (const int64_t group = reader.integer("group_size", 1, 1 << 20, 16); group != 16)
        fail(Code::kUnsupported,
             fmt::format("{}.group_size: {} must have 16 for {}, got {}", reader.path(), name, pattern, group));
      return WeightFormat::kNvfp4;
    }
    if (name == "FP8" || name == "FP8_PER_CHANNEL_PER_TOKEN") return WeightFormat::kFp8;
    if (name == "FP8_PB_WO") return WeightFormat::kFp8Block;
    fail(Code::kUnsupported, fmt::format("{}.quant_algo: \"{}\" for {} is not supported; supported: {}", reader.path(),
                                         name, pattern, kSupported));
  }

  void read_modelopt(const ConfigReader& reader) {
    if (reader.text("quant_algo", "") == "MIXED_PRECISION" || reader.has("quantized_layers")) {
      const ConfigReader named = reader.child("quantized_layers");
      for (const auto& [pattern, value] : named.json().items()) {
        const std::string where = fmt::format("{}.{}", named.path(), pattern);
        layers.push_back({NamePattern(pattern, where), algorithm(ConfigReader(value, where), pattern)});
      }
      if (reader.text("quant_algo", "") != "MIXED_PRECISION") linear = algorithm(reader, "all linear modules");
    } else {
      linear = algorithm(reader, "all linear modules");
    }
    for (const char* key : {"ignore", "exclude_modules"})
      for (std::string& text : reader.texts(key)) ignored.emplace_back(std::move(text), reader.path() + "." + key);
  }

  static WeightFormat group_format(const ConfigReader& group, const std::string& targets) {
    const ConfigReader weights = group.child("weights");
    const int64_t bits = weights.integer("num_bits", 1, 64);
    const std::string type = weights.text("type", "int"), strategy = weights.text("strategy", "");
    const int64_t size = weights.integer("group_size", -1, 1 << 20, -1);
    if (type == "float" && bits == 4 && size == 16) return WeightFormat::kNvfp4;
    if (type == "float" && bits == 8 && (strategy == "tensor" || strategy == "channel")) return WeightFormat::kFp8;
    if (type == "float" && bits == 8 && strategy == "block") {
      check_block(weights, "block_structure", targets);
      return WeightFormat::kFp8Block;
    }
    fail(Code::kUnsupported,
         fmt::format(
             "{}: {} {}-bit weights, strategy \"{}\", group_size {} for {} are not supported; supported: float 4-bit "
             "in groups of 16, float 8-bit per tensor, channel or block of 128 x 128",
             weights.path(), type, bits, strategy, size, targets));
  }

  static void check_block(const ConfigReader& reader, const char* key, const std::string& pattern) {
    const std::vector<int64_t> block = reader.integers(key);
    if (block != std::vector<int64_t>{128, 128})
      fail(Code::kUnsupported, fmt::format("{}.{}: must be [128, 128] for {}, got {}", reader.path(), key, pattern,
                                           reader.has(key) ? reader.json().at(key).dump() : "nothing"));
  }

  void read_compressed_tensors(const ConfigReader& reader) {
    const ConfigReader groups = reader.child("config_groups");
    for (const auto& [name, value] : groups.json().items()) {
      const ConfigReader group(value, fmt::format("{}.{}", groups.path(), name));
      const std::vector<std::string> targets = group.texts("targets");
      if (targets.empty())
        fail(Code::kBadModel, fmt::format("{}.targets: must name modules, names none", group.path()));
      std::string all = targets[0];
      for (size_t i = 1; i < targets.size() && all.size() < 200; ++i) all += ", " + targets[i];
      const WeightFormat format = group_format(group, all);
      for (const std::string& target : targets) {
        if (target == "Linear")
          linear = format;
        else
          layers.push_back({NamePattern(target, group.path() + ".targets"), format});
      }
    }
    for (std::string& text : reader.texts("ignore")) ignored.emplace_back(std::move(text), reader.path() + ".ignore");
  }

  void read_fp8(const ConfigReader& reader) {
    linear = WeightFormat::kFp8;
    if (reader.has("weight_block_size")) {
      check_block(reader, "weight_block_size", "all linear modules");
      linear = WeightFormat::kFp8Block;
    }
    if (const std::string format = reader.text("fmt", "e4m3"); format != "e4m3")
      fail(Code::kUnsupported, fmt::format("{}.fmt: must be e4m3, got \"{}\"", reader.path(), format));
    for (const char* key : {"modules_to_not_convert", "ignored_layers"})
      for (std::string& text : reader.texts(key)) ignored.emplace_back(std::move(text), reader.path() + "." + key);
  }
};

QuantRules::QuantRules(const json& config) : impl_(std::make_unique<Impl>()) {
  if (const std::string dtype = dtype_in(config); dtype == "float32" || dtype == "torch.float32")
    impl_->plain = WeightFormat::kF32;
  const json* quantization = quantization_in(config);
  if (quantization == nullptr) return;
  const ConfigReader reader(*quantization, "config.quantization_config");
  const std::string method = reader.text("quant_method", "");
  if (method == "modelopt" || method == "modelopt_fp4" || method == "modelopt_mixed") {
    impl_->method = "modelopt";
    impl_->read_modelopt(reader);
  } else if (method == "compressed-tensors") {
    impl_->method = method;
    impl_->read_compressed_tensors(reader);
  } else if (method == "fp8") {
    impl_->method = method;
    impl_->read_fp8(reader);
  } else {
    fail(Code::kUnsupported, fmt::format("{}.quant_method: \"{}\" for all linear modules is not supported; supported: "
                                         "modelopt compressed-tensors fp8",
                                         reader.path(), method));
  }
  std::stable_sort(impl_->layers.begin(), impl_->layers.end(), [](const Impl::Layer& a, const Impl::Layer& b) {
    return a.pattern.text().size() > b.pattern.text().size();
  });
}

QuantRules::QuantRules(QuantRules&&) noexcept = default;
QuantRules::~QuantRules() = default;

std::string_view QuantRules::method() const { return impl_->method; }

WeightFormat QuantRules::plain() const { return impl_->plain; }

WeightFormat QuantRules::format_of(std::string_view module) const {
  for (const Impl::Layer& layer : impl_->layers)
    if (layer.pattern.matches(module)) return layer.format.value_or(impl_->plain);
  for (const NamePattern& pattern : impl_->ignored)
    if (pattern.matches(module)) return impl_->plain;
  return impl_->linear.value_or(impl_->plain);
}

}  // namespace mettle

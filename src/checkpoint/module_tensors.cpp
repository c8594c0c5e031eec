#include "checkpoint/module_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace mettle {
namespace {

// Behind "<module>.weight", "<module>_weight" or, for fused experts, "<module>" itself.
constexpr std::string_view kCompanions[] = {"_scale",      "_scale_2", "_scale_inv", "_global_scale",
                                            "_zero_point", "_g_idx",   "_shape"};
constexpr std::string_view kInputCompanions[] = {"input_scale", "input_global_scale", "input_zero_point",
                                                 "pre_quant_scale"};

bool is_float(const StoredTensor& t) {
  return t.readable &&
         (t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16 || t.dtype == DType::kF64);
}

std::string described(const StoredTensor& t) { return fmt::format("{} [{}]", t.stored_as, fmt::join(t.shape, ", ")); }

// E8M0 has a dtype of its own only since lately; older exporters store its bytes as U8.
bool is_e8m0(const StoredTensor* t) { return t != nullptr && (t->stored_as == "F8_E8M0" || t->stored_as == "U8"); }

void classify_nvfp4(ModuleTensors& m, std::string_view scale_name, std::string_view global_name) {
  m.format = WeightFormat::kNvfp4;
  if (m.weight->stored_as != "U8") {
    m.unsupported = fmt::format("packed integers ({} weight)", m.weight->stored_as);
  } else if (is_e8m0(m.scale)) {
    m.unsupported = fmt::format("MXFP4 (U8 weight, {} scale)", m.scale->stored_as);
  } else if (m.scale == nullptr) {
    m.damaged = fmt::format("{}: is missing beside {}", scale_name, m.weight->name);
  } else if (m.scale->stored_as != "F8_E4M3") {
    m.damaged = fmt::format("{}: must be F8_E4M3, is {}", m.scale->name, described(*m.scale));
  } else if (m.global == nullptr) {
    m.damaged = fmt::format("{}: is missing beside {}", global_name, m.weight->name);
  } else if (!is_float(*m.global)) {
    m.damaged = fmt::format("{}: must be F32, is {}", m.global->name, described(*m.global));
  }
}

// The sizes of a scale for each 128 x 128 weights.
std::vector<int64_t> block_grid(const ModuleTensors& m) {
  std::vector<int64_t> grid = m.weight->shape;
  for (size_t i = grid.size() - std::min<size_t>(grid.size(), 2); i < grid.size(); ++i) grid[i] = (grid[i] + 127) / 128;
  return grid;
}

// compressed-tensors calls the scales of blocks weight_scale, as it does those of a tensor and of channels; ModelOpt
// does too, with ones between the sizes.
bool has_block_scales(const ModuleTensors& m) {
  const auto count = static_cast<int64_t>(m.scale->bytes / size_of(m.scale->dtype));
  const std::vector<int64_t> grid = block_grid(m);
  if (count == 1) return false;
  if (m.scale->shape == grid) return true;
  if (count == m.rows()) return false;
  const auto without_ones = [](std::vector<int64_t> sizes) {
    std::erase(sizes, 1);
    return sizes;
  };
  return without_ones(m.scale->shape) == without_ones(grid);
}

void classify_fp8(ModuleTensors& m, const StoredTensor* scale, const StoredTensor* inverse,
                  std::string_view scale_name) {
  m.scale = inverse != nullptr ? inverse : scale;
  m.format = inverse != nullptr ? WeightFormat::kFp8Block : WeightFormat::kFp8;
  if (is_e8m0(m.scale)) {
    m.unsupported = fmt::format("MXFP8 (F8_E4M3 weight, {} scale)", m.scale->stored_as);
    return;
  }
  if (m.scale == nullptr) {
    m.damaged = fmt::format("{}: is missing beside {}", scale_name, m.weight->name);
    return;
  }
  if (!is_float(*m.scale)) {
    m.damaged = fmt::format("{}: must be a float type, is {}", m.scale->name, described(*m.scale));
    return;
  }
  if (inverse == nullptr && has_block_scales(m)) m.format = WeightFormat::kFp8Block;
}

void classify(ModuleTensors& m, const Safetensors& file, const std::string& prefix, bool packed) {
  const auto companion = [&](std::string_view name) { return file.find(prefix + std::string(name)); };
  m.scale = companion("_scale");
  if (packed) {
    m.global = companion("_global_scale");
    m.global_divides = true;
    classify_nvfp4(m, prefix + "_scale", prefix + "_global_scale");
  } else if (m.weight->stored_as == "U8") {
    m.global = companion("_scale_2");
    classify_nvfp4(m, prefix + "_scale", prefix + "_scale_2");
  } else if (m.weight->stored_as == "F8_E4M3") {
    classify_fp8(m, m.scale, companion("_scale_inv"), prefix + "_scale");
  } else if (is_float(*m.weight)) {
    m.format = m.weight->dtype == DType::kBF16 ? WeightFormat::kBf16 : WeightFormat::kF32;
    m.scale = nullptr;
  } else {
    m.unsupported = m.weight->stored_as == "I8" ? "INT8" : fmt::format("{} weights", m.weight->stored_as);
  }
}

}  // namespace

int64_t ModuleTensors::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < weight->shape.size(); ++i) rows *= weight->shape[i];
  return rows;
}

int64_t ModuleTensors::cols() const {
  const int64_t last = weight->shape.empty() ? 1 : weight->shape.back();
  return format == WeightFormat::kNvfp4 ? 2 * last : last;
}

std::optional<ModuleTensors> module_tensors(const Safetensors& file, const std::string& module) {
  ModuleTensors m;
  m.module = module;
  const auto found = [&](const char* suffix) { return (m.weight = file.find(module + suffix)) != nullptr; };
  if (found(".weight"))
    classify(m, file, module + ".weight", false);
  else if (found(".weight_packed"))
    classify(m, file, module + ".weight", true);
  else if (found("_weight_packed"))
    classify(m, file, module + "_weight", true);
  else if (found("_packed"))
    classify(m, file, module, true);
  else if (found("_blocks"))
    m.unsupported = "MXFP4 (blocks and scales)";
  else if (found(".qweight"))
    m.unsupported = fmt::format("AWQ or GPTQ ({} qweight)", m.weight->stored_as);
  else if (found("")) {
    const bool long_names =
        file.find(module + "_weight_scale") != nullptr || file.find(module + "_weight_scale_inv") != nullptr;
    classify(m, file, module + (long_names ? "_weight" : ""), false);
  } else {
    return std::nullopt;
  }
  if (m.unsupported.empty() && file.find(module + ".pre_quant_scale") != nullptr)
    m.unsupported = fmt::format("AWQ smoothing (pre_quant_scale) of {}", name_of(m.format));
  return m;
}

std::string_view module_of_weight(const StoredTensor& tensor) {
  const std::string_view name = tensor.name;
  for (const std::string_view suffix : {".weight_packed", ".weight", "_weight_packed", "_packed", ".qweight"})
    if (name.ends_with(suffix)) return tensor.shape.size() < 2 ? "" : name.substr(0, name.size() - suffix.size());
  if (name.ends_with("_proj_blocks")) return name.substr(0, name.size() - 7);
  // Fused experts: [experts, rows, cols] under the module's own name.
  return tensor.shape.size() == 3 && name.ends_with("_proj") ? name : "";
}

std::string_view module_of_companion(std::string_view tensor) {
  for (const std::string_view suffix : kInputCompanions) {
    if (!tensor.ends_with(suffix) || tensor.size() < suffix.size() + 2) continue;
    return tensor.substr(0, tensor.size() - suffix.size() - 1);  // and the '.' or '_' before it
  }
  for (const std::string_view suffix : kCompanions) {
    if (!tensor.ends_with(suffix)) continue;
    std::string_view stem = tensor.substr(0, tensor.size() - suffix.size());
    for (const std::string_view weight : {".weight", "_weight"})
      if (stem.ends_with(weight)) return stem.substr(0, stem.size() - weight.size());
    return stem;
  }
  return "";
}

bool is_cache_scale(std::string_view tensor) {
  for (const std::string_view suffix :
       {".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale", ".output_scale"})
    if (tensor.ends_with(suffix)) return true;
  return false;
}

}  // namespace mettle

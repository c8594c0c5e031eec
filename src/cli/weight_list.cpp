#include "cli/weight_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "checkpoint/module_tensors.h"

namespace mettle {
namespace {

int64_t sum_of_bytes(const ModuleTensors& m) {
  size_t bytes = 0;
  for (const StoredTensor* t : {m.weight, m.scale, m.global})
    if (t != nullptr) bytes += t->bytes;
  return static_cast<int64_t>(bytes);
}

}  // namespace

int64_t bytes_of(WeightFormat format, int64_t rows, int64_t cols) {
  const int64_t weights = rows * cols;
  switch (format) {
    case WeightFormat::kNvfp4:
      return weights / 2 + rows * ((cols + 15) / 16);
    case WeightFormat::kFp8:
      return weights;
    case WeightFormat::kFp8Block:
      return weights + (rows + 127) / 128 * ((cols + 127) / 128) * 4;
    case WeightFormat::kBf16:
      return 2 * weights;
    case WeightFormat::kF32:
      return 4 * weights;
  }
  return 0;
}

WeightList::WeightList(const nlohmann::json& config, const Safetensors* file)
    : file_(file), config_(dummy_weights(config, 1)) {}

bool WeightList::has(std::string_view module) const {
  return file_ == nullptr ? config_->has(module) : module_tensors(*file_, std::string(module)).has_value();
}

bool WeightList::has_tensor(std::string_view name) const { return file_ != nullptr && file_->find(name) != nullptr; }

WeightFormat WeightList::format_of(const std::string& module) const {
  if (file_ != nullptr)
    if (const std::optional<ModuleTensors> m = module_tensors(*file_, module)) return m->format;
  return config_->format_of(module);
}

void WeightList::ignore(const std::string& prefix, const std::string& why) { ignored_.emplace_back(prefix, why); }

void WeightList::wants_matrix(const std::string& module, int64_t rows, int64_t cols) {
  const auto [at, first] = weights_.emplace(module, ListedWeight{rows, cols, format_of(module), 0, false});
  if (!first) return;
  at->second.bytes = bytes_of(at->second.format, rows, cols);
  if (file_ == nullptr) return;
  const std::optional<ModuleTensors> m = module_tensors(*file_, module);
  if (!m) {
    missing_.push_back(fmt::format("{}: is missing, must be [{}, {}]", module, rows, cols));
  } else if (m->unsupported.empty() && m->damaged.empty()) {
    at->second.bytes = sum_of_bytes(*m);
    if (m->rows() != rows || m->cols() != cols)
      missing_.push_back(
          fmt::format("{}: must be [{}, {}], has {} rows of {} weights", module, rows, cols, m->rows(), m->cols()));
  }
}

void WeightList::wants_vector(const std::string& name, const Shape& shape) {
  const int64_t count = shape.elements();
  const WeightFormat plain = config_->format_of("model.embed_tokens");
  const auto [at, first] = weights_.emplace(name, ListedWeight{1, count, plain, bytes_of(plain, 1, count), true});
  if (!first || file_ == nullptr) return;
  const StoredTensor* t = file_->find(name);
  if (t == nullptr) {
    missing_.push_back(fmt::format("{}: is missing, must be {}", name, shape.text()));
    return;
  }
  at->second.format = t->dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  at->second.bytes = static_cast<int64_t>(t->bytes);
  int64_t elements = 1;
  for (const int64_t size : t->shape) elements *= size;
  if (elements != count)
    missing_.push_back(fmt::format("{}: must be {}, has [{}]", name, shape.text(), fmt::join(t->shape, ", ")));
}

std::string WeightList::why_ignored(std::string_view tensor) const {
  for (const auto& [prefix, why] : ignored_)
    if (tensor.starts_with(prefix)) return why;
  return "";
}

std::vector<const StoredTensor*> WeightList::unused() const {
  std::vector<const StoredTensor*> all;
  if (file_ == nullptr) return all;
  for (const StoredTensor& t : file_->tensors()) {
    const auto wanted = [&](std::string_view name) {
      return !name.empty() && weights_.find(std::string(name)) != weights_.end();
    };
    if (!wanted(t.name) && !wanted(module_of_weight(t)) && !wanted(module_of_companion(t.name)) &&
        !is_cache_scale(t.name) && why_ignored(t.name).empty())
      all.push_back(&t);
  }
  return all;
}

RawMatrix WeightList::matrix(const std::string& module, int64_t, int64_t, ThreadTeam*) {
  fail(Code::kInternal, fmt::format("{}: a list of weights has no values", module));
}
std::vector<float> WeightList::vector(const std::string& name, const Shape&) {
  fail(Code::kInternal, fmt::format("{}: a list of weights has no values", name));
}

}  // namespace mettle

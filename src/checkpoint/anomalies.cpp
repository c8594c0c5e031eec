#include "checkpoint/anomalies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "checkpoint/file_weights.h"
#include "checkpoint/module_tensors.h"

namespace mettle {
namespace {

bool is_small_float(const StoredTensor& t) {
  return t.readable && (t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16 ||
                        t.dtype == DType::kE4M3 || t.dtype == DType::kF64);
}

bool is_scale(std::string_view name) {
  return !module_of_companion(name).empty() || is_cache_scale(name) || name.ends_with("_scale");
}
// Of a whole tensor: a zero there means that nothing was calibrated, while a block of zero weights may well have one.
bool is_global(const StoredTensor& t) {
  return t.name.ends_with("_scale_2") || t.name.ends_with("_global_scale") || t.name.ends_with("input_scale") ||
         (t.dtype != DType::kE4M3 && t.bytes == size_of(t.dtype) && is_scale(t.name));
}

class Finder {
 public:
  Finder(const Safetensors& file, const AnomalyLimits& limits) : file_(file), limits_(limits) {}

  Anomalies run() {
    for (const StoredTensor& t : file_.tensors()) {
      look_at_format(t);
      look_at_values(t);
    }
    for (const StoredTensor& t : file_.tensors()) compare_gate_and_up(t);
    if (widest_ > 1)
      add("gate and up projection of one expert have different global scales: an engine that keeps one of the two "
          "computes garbage",
          widest_at_, fmt::format("up to a factor of {:.3g}", widest_), false, unequal_);
    for (auto& [key, anomaly] : found_) all_.found.push_back(std::move(anomaly));
    std::stable_sort(all_.found.begin(), all_.found.end(),
                     [](const Anomaly& a, const Anomaly& b) { return a.refused > b.refused; });
    return std::move(all_);
  }

 private:
  void add(const std::string& what, std::string_view first, const std::string& value, bool refused, int64_t count = 1) {
    Anomaly& a = found_[what];
    if (a.count == 0) a = {what, std::string(first), value, 0, refused};
    a.count += count;
  }

  void look_at_format(const StoredTensor& t) {
    if (t.bytes == 0) add("a tensor without elements", t.name, "", false);
    const std::string_view module = module_of_weight(t);
    if (module.empty()) return;
    const std::optional<ModuleTensors> m = module_tensors(file_, std::string(module));
    if (!m) return;
    if (!m->unsupported.empty())
      add(fmt::format("a format nobody reads here: {}", m->unsupported), m->module, "", true);
    else if (!m->damaged.empty())
      add("a quantised weight without what belongs to it", m->module, m->damaged, true);
  }

  void look_at_values(const StoredTensor& t) {
    if (!is_small_float(t) || t.bytes == 0) return;
    const auto bytes = static_cast<int64_t>(t.bytes);
    if (bytes > limits_.tensor_bytes || all_.bytes_read + bytes > limits_.total_bytes) {
      ++all_.tensors_left;
      return;
    }
    ++all_.tensors_read;
    all_.bytes_read += bytes;
    const bool scale = is_scale(t.name), global = scale && is_global(t);
    for (size_t i = 0; i < t.bytes / size_of(t.dtype); ++i) {
      const float v = float_at(t, static_cast<int64_t>(i));
      const auto where = [&] { return fmt::format("element {} is {}", i, v); };
      if (!std::isfinite(v)) return add("values that are not finite", t.name, where(), true);
      if (scale && v < 0) return add("a negative scale", t.name, where(), true);
      // Scales of activations and caches are read by nobody here, so a zero there stops nothing.
      const bool of_weight = !t.name.ends_with("input_scale") && !is_cache_scale(t.name);
      if (global && v == 0) return add("a scale of zero: everything it multiplies is zero", t.name, where(), of_weight);
    }
  }

  void compare_gate_and_up(const StoredTensor& t) {
    constexpr std::string_view kGate = ".gate_proj.weight_scale_2", kGateDivisor = ".gate_proj.weight_global_scale";
    const std::string_view tail = t.name.ends_with(kGate) ? kGate : t.name.ends_with(kGateDivisor) ? kGateDivisor : "";
    if (tail.empty() || !is_small_float(t) || t.bytes != size_of(t.dtype)) return;
    const std::string stem = t.name.substr(0, t.name.size() - tail.size());
    const StoredTensor* up = file_.find(stem + ".up_proj" + std::string(tail.substr(10)));
    if (up == nullptr || !is_small_float(*up) || up->bytes != size_of(up->dtype)) return;
    const float a = float_at(t, 0), b = float_at(*up, 0);
    if (!(a > 0) || !(b > 0) || a == b) return;
    ++unequal_;
    const double ratio = std::max(a, b) / static_cast<double>(std::min(a, b));
    if (ratio > widest_) {
      widest_ = ratio;
      widest_at_ = stem;
    }
  }

  const Safetensors& file_;
  AnomalyLimits limits_;
  Anomalies all_;
  std::map<std::string, Anomaly> found_;
  int64_t unequal_ = 0;
  double widest_ = 1;
  std::string widest_at_;
};

}  // namespace

Anomalies find_anomalies(const Safetensors& file, const AnomalyLimits& limits) { return Finder(file, limits).run(); }

}  // namespace mettle

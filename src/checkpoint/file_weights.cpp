#include "checkpoint/file_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_tensors.h"
#include "checkpoint/scan.h"
#include "checkpoint/weight_memory.h"

namespace mettle {
namespace {

std::string shape_of(const StoredTensor& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); }
int64_t count_of(const StoredTensor& t) { return static_cast<int64_t>(t.bytes / size_of(t.dtype)); }

bool is_quantised(WeightFormat format) { return format != WeightFormat::kF32 && format != WeightFormat::kBf16; }

// [3, 1, 4] and [3, 4] hold the same numbers in the same order.
std::vector<int64_t> without_ones(std::vector<int64_t> sizes) {
  std::erase(sizes, 1);
  return sizes;
}

class FileWeights : public WeightSource {
 public:
  FileWeights(Safetensors file, QuantRules rules) : file_(std::move(file)), rules_(std::move(rules)) {
    used_.resize(file_.tensors().size());
    checked_.resize(file_.tensors().size());
    check_formats();
  }

  bool has(std::string_view module) const override { return module_tensors(file_, std::string(module)).has_value(); }

  bool has_tensor(std::string_view name) const override { return file_.find(name) != nullptr; }

  WeightFormat format_of(const std::string& module) const override { return tensors_of(module).format; }

  bool is_dummy() const override { return false; }

  RawMatrix matrix(const std::string& module, int64_t rows, int64_t cols, ThreadTeam* team) override {
    const ModuleTensors m = tensors_of(module);
    if (!m.damaged.empty()) fail(Code::kBadModel, m.damaged);
    if (rows <= 0 || cols <= 0)
      fail(Code::kBadModel,
           fmt::format("{}: must have at least one row and column, wanted [{}, {}]", module, rows, cols));
    if (m.rows() != rows || m.cols() != cols || m.weight->shape.empty())
      fail(Code::kBadModel,
           fmt::format("{}: must be [{}, {}] {}, got {} {} ({} rows, {} columns)", m.weight->name, rows, cols,
                       name_of(m.format), shape_of(*m.weight), m.weight->stored_as, m.rows(), m.cols()));
    RawMatrix raw;
    raw.format = m.format;
    raw.rows = rows;
    raw.cols = cols;
    raw.name = module;
    switch (m.format) {
      case WeightFormat::kNvfp4:
        fill_nvfp4(raw, m, team);
        break;
      case WeightFormat::kFp8:
        fill_fp8(raw, m, team);
        break;
      case WeightFormat::kFp8Block:
        fill_fp8_block(raw, m, team);
        break;
      case WeightFormat::kBf16:
      case WeightFormat::kF32:
        fill_plain(raw, m, team);
        break;
    }
    if (is_quantised(m.format) || module.ends_with("embed_tokens")) return raw;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_quantised(rules_.format_of(module))) unquantised_.push_back(module);
    return raw;
  }

  std::vector<float> vector(const std::string& name, const Shape& shape) override {
    const StoredTensor* t = file_.find(name);
    if (t == nullptr) fail(Code::kBadModel, fmt::format("{}: is missing, must be {}", name, shape.text()));
    std::vector<int64_t> want(shape.size.begin(), shape.size.begin() + shape.rank);
    if (without_ones(want) != without_ones(t->shape))
      fail(Code::kBadModel, fmt::format("{}: must be {}, got {} {}", name, shape.text(), shape_of(*t), t->stored_as));
    std::vector<float> values = floats(*t);
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i]))
        fail(Code::kBadModel,
             fmt::format("{}: must be finite, element {} of {} is {}", name, i, values.size(), values[i]));
    use(*t);
    return values;
  }

  void ignore(const std::string& prefix, const std::string& why) override { ignored_.emplace_back(prefix, why); }

  void release() override {
    memory_.release();
    for (const StoredTensor* t : std::exchange(lent_, {}))
      t->file->done_with(static_cast<size_t>(t->data - t->file->data()), t->bytes);
  }

  void finish() override {
    file_.check_intact();
    struct Sum {
      size_t tensors = 0, bytes = 0;
    };
    std::vector<Sum> ignored(ignored_.size());
    std::vector<std::string_view> unused;
    size_t bytes = 0;
    for (size_t i = 0; i < used_.size(); ++i) {
      const StoredTensor& t = file_.tensors()[i];
      if (used_[i] || belongs_to_used(t.name)) continue;
      const auto by = std::find_if(ignored_.begin(), ignored_.end(), [&](const auto& prefix_and_why) {
        return t.name.starts_with(prefix_and_why.first);
      });
      if (by != ignored_.end()) {
        Sum& sum = ignored[static_cast<size_t>(by - ignored_.begin())];
        ++sum.tensors;
        sum.bytes += t.bytes;
      } else {
        unused.push_back(t.name);
        bytes += t.bytes;
      }
    }
    for (size_t i = 0; i < ignored.size(); ++i)
      if (ignored[i].tensors > 0)
        log::info("checkpoint: {} tensors ({} bytes) of {}* not used: {}", ignored[i].tensors, ignored[i].bytes,
                  ignored_[i].first, ignored_[i].second);
    if (!unused.empty()) {
      const size_t shown = std::min<size_t>(unused.size(), 5);
      fail(Code::kBadModel, fmt::format("{}: {} tensors ({} bytes) are used by nothing in this model: {}{}",
                                        file_.tensors().front().file->path(), unused.size(), bytes,
                                        fmt::join(unused.begin(), unused.begin() + static_cast<long>(shown), ", "),
                                        unused.size() > shown ? ", ..." : ""));
    }
    if (!unquantised_.empty())
      log::warn("checkpoint: {} modules are not quantised though the config says so; read as they are (first: {})",
                unquantised_.size(), *std::min_element(unquantised_.begin(), unquantised_.end()));
    unquantised_.clear();
  }

 private:
  size_t index_of(const StoredTensor& t) const { return static_cast<size_t>(&t - file_.tensors().data()); }
  void use(const StoredTensor& t) {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_[index_of(t)] = 1;
    lent_.push_back(&t);
  }
  // Whether the values of t are still to be checked; true once.
  bool first_time(const StoredTensor& t) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(checked_[index_of(t)], 1) == 0;
  }

  bool is_used(std::string_view module) const {
    for (const char* suffix : {".weight", ".weight_packed", "", "_weight_packed", "_packed"})
      if (const StoredTensor* t = file_.find(std::string(module) + suffix)) return used_[index_of(*t)] != 0;
    return false;
  }

  // Scales beside a matrix that was read (input_scale and the like), and scales of the KV cache.
  bool belongs_to_used(std::string_view name) const {
    if (is_cache_scale(name)) return true;
    const std::string_view module = module_of_companion(name);
    return !module.empty() && is_used(module);
  }

  ModuleTensors tensors_of(const std::string& module) const {
    std::optional<ModuleTensors> m = module_tensors(file_, module);
    if (!m)
      fail(Code::kBadModel,
           fmt::format("{}: is missing: no tensor {}.weight, {}.weight_packed or {}", module, module, module, module));
    if (!m->unsupported.empty()) refuse({module}, m->unsupported);
    return *std::move(m);
  }

  [[noreturn]] static void refuse(const std::vector<std::string>& modules, const std::string& format) {
    fail(Code::kUnsupported,
         fmt::format("{}: {} is not supported{}; supported: NVFP4, FP8 (per tensor, per channel, in "
                     "blocks of 128 x 128), BF16, F16, F32",
                     modules.front(), format,
                     modules.size() > 1 ? fmt::format(" (nor are {} more modules)", modules.size() - 1) : ""));
  }

  // Over all matrices of the file, before a weight is read: formats nobody reads, and quantised tensors where the
  // config promises something else.
  void check_formats() const {
    const bool promised = rules_.method() != "none";
    bool any = false;
    std::vector<std::string> refused;
    std::string format;
    for (const StoredTensor& t : file_.tensors()) {
      const std::string_view module = module_of_weight(t);
      if (module.empty() || (is_quantised_type(t) == false)) continue;
      const std::optional<ModuleTensors> m = module_tensors(file_, std::string(module));
      if (!m) continue;
      if (!m->unsupported.empty()) {
        if (refused.empty()) format = m->unsupported;
        refused.emplace_back(module);
        continue;
      }
      any = true;
      if (!promised || !m->damaged.empty()) continue;
      if (const WeightFormat said = rules_.format_of(module); said != m->format)
        fail(Code::kBadModel,
             fmt::format("{}: {} by its tensors ({} {}), but {} by config.quantization_config ({})", module,
                         name_of(m->format), t.name, t.stored_as, name_of(said), rules_.method()));
    }
    if (!refused.empty()) refuse(refused, format);
    if (any && !promised)
      log::warn("checkpoint: quantised tensors, but no quantization_config; formats are read off the tensors");
  }

  static bool is_quantised_type(const StoredTensor& t) {
    return !t.readable ||
           (t.dtype != DType::kBF16 && t.dtype != DType::kF32 && t.dtype != DType::kF16 && t.dtype != DType::kF64);
  }

  std::vector<float> floats(const StoredTensor& t) const {
    if (!t.readable) fail(Code::kBadModel, fmt::format("{}: must be a float type, is {}", t.name, t.stored_as));
    std::vector<float> values(static_cast<size_t>(count_of(t)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = float_at(t, static_cast<int64_t>(i));
    return values;
  }

  [[noreturn]] static void bad_value(const StoredTensor& t, int64_t at, int64_t cols, std::string_view must,
                                     const std::string& value) {
    fail(Code::kBadModel, fmt::format("{}: {}, row {} column {} is {}", t.name, must, at / cols, at % cols, value));
  }

  // Scales that are one for all, one for each expert, one for each half of a fused gate and up, or one for each row.
  void set_row_scales(RawMatrix& raw, const ModuleTensors& m, const StoredTensor& t, bool divides, bool zero_is_fine) {
    std::vector<float> values = floats(t);
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = divides ? 1.f / values[i] : values[i];
      const bool fine = std::isfinite(value) && std::isfinite(values[i]) && (value > 0 || (zero_is_fine && value == 0));
      if (!fine)
        fail(Code::kBadModel,
             fmt::format("{}: must be finite and {} 0{}, element {} of {} is {}", t.name, zero_is_fine ? ">=" : ">",
                         divides ? " (as is 1/x)" : "", i, values.size(), values[i]));
      values[i] = value;
    }
    use(t);
    const auto count = static_cast<int64_t>(values.size());
    if (count == 1) {
      raw.global_scale = values[0];
      return;
    }
    const int64_t experts = m.weight->shape.size() > 2 ? m.weight->shape[0] : 1;
    const bool halves = count == 2 * experts && m.module.ends_with("gate_up_proj") && raw.rows % count == 0;
    if (count != raw.rows && count != experts && !halves)
      fail(Code::kBadModel, fmt::format("{}: must have 1, {} (experts) or {} (rows) elements, got {}", t.name, experts,
                                        raw.rows, shape_of(t)));
    const int64_t each = raw.rows / count;
    float* rows = memory_.take_of<float>(raw.rows);
    for (int64_t r = 0; r < raw.rows; ++r) rows[r] = values[static_cast<size_t>(r / each)];
    raw.row_scale = rows;
  }

  void fill_nvfp4(RawMatrix& raw, const ModuleTensors& m, ThreadTeam* team) {
    std::vector<int64_t> want = m.weight->shape;
    want.back() = raw.cols / 16;
    if (raw.cols % 16 != 0 || without_ones(want) != without_ones(m.scale->shape))
      fail(Code::kBadModel,
           fmt::format("{}: must be [{}] F8_E4M3 (a scale for each 16 columns of {} {}), got {}", m.scale->name,
                       fmt::join(want, ", "), m.weight->name, shape_of(*m.weight), shape_of(*m.scale)));
    if (first_time(*m.scale))
      if (const int64_t at = find_first(team, find_bad_scale, m.scale->data, count_of(*m.scale), 1); at >= 0)
        bad_value(*m.scale, at, raw.cols / 16, "scales must be numbers >= 0",
                  fmt::format("{} (code 0x{:02X})", e4m3_to_float(m.scale->data[at]), m.scale->data[at]));
    raw.data = m.weight->data;
    raw.row_bytes = raw.cols / 2;
    raw.scales = m.scale->data;
    raw.scale_row_bytes = raw.cols / 16;
    use(*m.weight);
    use(*m.scale);
    set_row_scales(raw, m, *m.global, m.global_divides, false);
  }

  void fill_e4m3(RawMatrix& raw, const ModuleTensors& m, ThreadTeam* team) {
    if (first_time(*m.weight))
      if (const int64_t at = find_first(team, find_nan_e4m3, m.weight->data, count_of(*m.weight), 1); at >= 0)
        bad_value(*m.weight, at, raw.cols, "weights must be numbers",
                  fmt::format("NaN (code 0x{:02X})", m.weight->data[at]));
    raw.data = m.weight->data;
    raw.row_bytes = raw.cols;
    use(*m.weight);
  }

  void fill_fp8(RawMatrix& raw, const ModuleTensors& m, ThreadTeam* team) {
    fill_e4m3(raw, m, team);
    // A scale of a whole tensor is never zero; that of a channel is when all its weights are.
    set_row_scales(raw, m, *m.scale, false, count_of(*m.scale) > 1);
  }

  void fill_fp8_block(RawMatrix& raw, const ModuleTensors& m, ThreadTeam* team) {
    const auto blocks = [](int64_t n) { return (n + 127) / 128; };
    std::vector<int64_t> want = m.weight->shape;
    if (want.size() < 2) want.insert(want.begin(), 1);
    const int64_t rows = want[want.size() - 2];
    if (want.size() > 2 && rows % 128 != 0)
      fail(Code::kUnsupported,
           fmt::format("{}: fused experts in 128 x 128 blocks must have rows in multiples of 128, have {}",
                       m.weight->name, rows));
    want[want.size() - 2] = blocks(rows);
    want.back() = blocks(raw.cols);
    if (without_ones(want) != without_ones(m.scale->shape))
      fail(Code::kBadModel,
           fmt::format("{}: must be [{}] (a scale for each 128 x 128 weights of {} {}), got {}", m.scale->name,
                       fmt::join(want, ", "), m.weight->name, shape_of(*m.weight), shape_of(*m.scale)));
    fill_e4m3(raw, m, team);
    const std::vector<float> values = floats(*m.scale);
    for (size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(values[i]) || values[i] < 0)
        bad_value(*m.scale, static_cast<int64_t>(i), want.back(), "scales must be numbers >= 0",
                  fmt::format("{}", values[i]));
    float* scales = memory_.take_of<float>(static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), scales);
    raw.scales = reinterpret_cast<const uint8_t*>(scales);
    raw.scale_row_bytes = want.back() * 4;
    use(*m.scale);
  }

  void fill_plain(RawMatrix& raw, const ModuleTensors& m, ThreadTeam* team) {
    const StoredTensor& t = *m.weight;
    const int64_t count = count_of(t);
    const int64_t element = m.format == WeightFormat::kBf16 ? 2 : 4;
    raw.row_bytes = raw.cols * element;
    use(t);
    if (t.dtype == DType::kBF16 || t.dtype == DType::kF32) {
      if (first_time(t))
        if (const int64_t at = find_first(team, t.dtype == DType::kBF16 ? find_not_finite_bf16 : find_not_finite_f32,
                                          t.data, count, element);
            at >= 0)
          bad_value(t, at, raw.cols, "weights must be finite", fmt::format("{}", float_at(t, at)));
      raw.data = t.data;
      // Backends read elements, so a tensor at an odd offset moves to memory of its own.
      if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(element) != 0) {
        uint8_t* copy = memory_.take(t.bytes);
        std::memcpy(copy, t.data, t.bytes);
        raw.data = copy;
      }
      return;
    }
    float* converted = memory_.take_of<float>(count);
    share_out(team, count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) converted[i] = float_at(t, i);
    });
    const auto* bytes = reinterpret_cast<const uint8_t*>(converted);
    if (const int64_t at = find_first(team, find_not_finite_f32, bytes, count, 4); at >= 0)
      bad_value(t, at, raw.cols, "weights must be finite", fmt::format("{}", float_at(t, at)));
    raw.data = bytes;
  }

  Safetensors file_;
  std::mutex mutex_;  // of what follows, and of matching names against rules_
  QuantRules rules_;
  WeightMemory memory_;
  std::vector<uint8_t> used_, checked_;  // by tensor
  std::vector<const StoredTensor*> lent_;
  std::vector<std::pair<std::string, std::string>> ignored_;
  std::vector<std::string> unquantised_;
};

}  // namespace

float float_at(const StoredTensor& t, int64_t i) {
  const uint8_t* p = t.data + i * static_cast<int64_t>(size_of(t.dtype));
  const auto load = [&](auto zero) {
    decltype(zero) value;
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (t.dtype) {
    case DType::kF32:
      return load(0.f);
    case DType::kF64:
      return static_cast<float>(load(0.0));
    case DType::kBF16:
      return bf16_to_float(load(uint16_t{0}));
    case DType::kF16:
      return f16_to_float(load(uint16_t{0}));
    case DType::kE4M3:
      return e4m3_to_float(*p);
    default:
      fail(Code::kBadModel, fmt::format("{}: must be a float type, is {}", t.name, t.stored_as));
  }
}

std::unique_ptr<WeightSource> file_weights(Safetensors file, QuantRules rules) {
  return std::make_unique<FileWeights>(std::move(file), std::move(rules));
}

}  // namespace mettle

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/quant_rules.h"
#include "checkpoint/weight_memory.h"
#include "checkpoint/weight_source.h"
#include "tensor/dtype.h"

namespace mettle {
namespace {

using nlohmann::json;

// splitmix64 over a counter: number i of a stream is a function of the key and i alone.
uint64_t mixed(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Stream {
 public:
  Stream(uint64_t seed, std::string_view name) {
    uint64_t hash = 0xCBF29CE484222325u ^ mixed(seed);  // FNV-1a, so that the bytes are the same everywhere
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    key_ = mixed(hash);
  }
  uint64_t operator[](uint64_t i) const { return mixed(key_ + i * 0x9E3779B97F4A7C15u); }
  double uniform(uint64_t i) const { return static_cast<double>((*this)[i] >> 11) * 0x1p-53; }
  double normal(uint64_t i) const {
    const double u = 1.0 - uniform(2 * i), v = uniform(2 * i + 1);
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
  }

 private:
  uint64_t key_;
};

// Quantiles of the standard normal distribution in kQuantiles equal steps: a random index is a normal number, in one
// load. Ends at +-3.7, variance 1 within 0.1 %.
constexpr size_t kQuantiles = 4096;

const std::array<float, kQuantiles>& quantiles() {
  static const std::array<float, kQuantiles> table = [] {
    std::array<float, kQuantiles> t;
    for (size_t i = 0; i < kQuantiles; ++i) {
      const double p = (static_cast<double>(i) + 0.5) / kQuantiles;
      double low = -6, high = 6;
      for (int step = 0; step < 60; ++step) {
        const double middle = (low + high) / 2;
        (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
      }
      t[i] = static_cast<float>(low);
    }
    return t;
  }();
  return table;
}

// What a thread fills at a time; a multiple of what one random number gives.
constexpr int64_t kBlock = 4096;
// Fewer blocks are not worth the handing out.
constexpr int64_t kLeastBlocks = 64;

// fill(begin, end) for parts of [0, count) that begin at whole blocks, by the team if that is worth it.
template <class F>
void fill_shared(ThreadTeam* team, int64_t count, F&& fill) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  share_out(blocks < kLeastBlocks ? nullptr : team, blocks,
            [&](int64_t begin, int64_t end) { fill(begin * kBlock, std::min(end * kBlock, count)); });
}

// Elements [begin, end) of T, each picked out of the table by 12 random bits. begin is a multiple of 4.
template <class T>
void fill_from(const std::array<T, kQuantiles>& table, const Stream& random, T* out, int64_t begin, int64_t end) {
  const int64_t whole = end / 4;
  for (int64_t i = begin / 4; i < whole; ++i) {
    const uint64_t r = random[static_cast<uint64_t>(i)];
    out[4 * i] = table[r & 4095];
    out[4 * i + 1] = table[(r >> 16) & 4095];
    out[4 * i + 2] = table[(r >> 32) & 4095];
    out[4 * i + 3] = table[(r >> 48) & 4095];
  }
  for (int64_t i = 4 * whole; i < end; ++i)
    out[i] = table[(random[static_cast<uint64_t>(whole)] >> (16 * (i - 4 * whole))) & 4095];
}

// Bytes [begin, end); begin is a multiple of 8.
void fill_bytes(const Stream& random, uint8_t* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 8) {
    const uint64_t r = random[static_cast<uint64_t>(i / 8)];
    std::memcpy(out + i, &r, static_cast<size_t>(std::min<int64_t>(8, end - i)));
  }
}

// Block scales: the eight codes 128, 144, .. 240.
constexpr uint8_t kFirstScale = 0x70;
// Root mean square of all E2M1 codes, and of those eight scales.
const double kCodeRms = std::sqrt(68.5 / 8);
const double kScaleRms = 16 * std::sqrt(137.5);
constexpr float kFp8Std = 32;  // of the E4M3 values: 3.7 deviations are far below 448

// What kinds of tensors a config implies.
struct Layout {
  explicit Layout(const json& config) {
    const ConfigReader top(config, "config");
    nested = top.has("text_config");
    const ConfigReader text = nested ? top.child("text_config") : top;
    model_type = top.text("model_type", text.text("model_type", ""));
    adds_one = model_type.starts_with("qwen3_5");
    tied = top.boolean("tie_word_embeddings", false);
    attention_bias = text.boolean("attention_bias", false);
    mtp_layers = text.integer("mtp_num_hidden_layers", 0, 16, 0);
    mtp_layers += text.integer("num_nextn_predict_layers", 0, 16, 0);
  }
  std::string model_type;
  bool nested, adds_one, tied, attention_bias;
  int64_t mtp_layers;
};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class DummyWeights : public WeightSource {
 public:
  DummyWeights(const json& config, uint64_t seed) : rules_(config), layout_(config), seed_(seed) {}

  bool is_dummy() const override { return true; }
  void ignore(const std::string&, const std::string&) override {}
  void release() override { memory_.release(); }
  void finish() override {}

  bool has(std::string_view module) const override {
    if (contains(module, "visual.") || contains(module, "vision_")) return false;
    if (module.starts_with("model.mtp.") || module.starts_with("language_model.")) return false;
    if (module.starts_with("mtp.")) {
      if (layout_.mtp_layers == 0) return false;
    } else if (module == "lm_head") {
      return !layout_.tied;
    } else if (!module.starts_with(layout_.nested ? "model.language_model." : "model.") ||
               (!layout_.nested && module.starts_with("model.language_model."))) {
      return false;
    }
    if (module.ends_with(".bias")) return layout_.attention_bias && contains(module, ".self_attn.");
    if (module.ends_with("_scale") || contains(module, "in_proj_qkvz") || contains(module, "in_proj_ba")) return false;
    const size_t experts = module.find(".experts.");
    if (experts == std::string_view::npos) return true;
    const std::string_view inside = module.substr(experts + 9);
    const bool each = !inside.empty() && inside[0] >= '0' && inside[0] <= '9';
    return each != has_fused_experts(module.substr(0, experts + 9));
  }

  WeightFormat format_of(const std::string& module) const override {
    // Embeddings are no linear layer, and routers stay as they are in every checkpoint.
    if (module.ends_with("embed_tokens") || module.ends_with(".mlp.gate") || module.ends_with("shared_expert_gate"))
      return rules_.plain();
    const std::lock_guard<std::mutex> lock(rules_mutex_);
    return rules_.format_of(module);
  }

  RawMatrix matrix(const std::string& module, int64_t rows, int64_t cols, ThreadTeam* team) override {
    if (rows <= 0 || cols <= 0)
      fail(Code::kBadModel,
           fmt::format("{}: must have at least one row and column, wanted [{}, {}]", module, rows, cols));
    RawMatrix raw;
    raw.format = format_of(module);
    raw.rows = rows;
    raw.cols = cols;
    raw.name = module;
    if (raw.format == WeightFormat::kNvfp4 && cols % 16 != 0)
      fail(Code::kBadModel, fmt::format("{}: {} columns are not a multiple of 16, which nvfp4 needs", module, cols));
    const Stream random(seed_, module);
    const double deviation = 1 / std::sqrt(static_cast<double>(cols));
    switch (raw.format) {
      case WeightFormat::kF32:
        fill<float>(raw, team, random, [&](float q) { return static_cast<float>(q * deviation); });
        break;
      case WeightFormat::kBf16:
        fill<uint16_t>(raw, team, random, [&](float q) { return float_to_bf16(static_cast<float>(q * deviation)); });
        break;
      case WeightFormat::kFp8:
        fill<uint8_t>(raw, team, random, [](float q) { return float_to_e4m3(q * kFp8Std); });
        raw.global_scale = static_cast<float>(deviation / kFp8Std);
        break;
      case WeightFormat::kFp8Block:
        fill_fp8_block(raw, team, random, deviation);
        break;
      case WeightFormat::kNvfp4:
        fill_nvfp4(raw, team, random, deviation);
        break;
    }
    return raw;
  }

  std::vector<float> vector(const std::string& name, const Shape& shape) override {
    if (shape.elements() <= 0)
      fail(Code::kBadModel, fmt::format("{}: must have at least one element, wanted {}", name, shape.text()));
    const Stream random(seed_, name);
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(value(name, random, i));
    return values;
  }

 private:
  bool is_quantised(std::string_view module) const {
    const WeightFormat format = rules_.format_of(module);
    return format != WeightFormat::kF32 && format != WeightFormat::kBf16;
  }

  // prefix ends with ".experts.". Only qwen3_5 stores them fused, and only those that are not quantised.
  bool has_fused_experts(std::string_view prefix) const {
    return layout_.adds_one && !is_quantised(std::string(prefix) + "0.up_proj");
  }

  double value(std::string_view name, const Stream& random, uint64_t i) const {
    if (name.ends_with("A_log")) return std::log(1 + 15 * random.uniform(i));
    if (name.ends_with("dt_bias")) return -4 + 3 * random.uniform(i);
    if (name.ends_with("conv1d.weight")) return 0.5 * random.normal(i);
    const bool norm = name.ends_with(".weight") && contains(name.substr(name.rfind('.', name.size() - 8) + 1), "norm");
    const bool plain_norm = norm && (!layout_.adds_one || name.ends_with("linear_attn.norm.weight"));
    return (plain_norm ? 1 : 0) + 0.02 * random.normal(i);
  }

  template <class T, class Encode>
  void fill(RawMatrix& raw, ThreadTeam* team, const Stream& random, Encode encode) {
    std::array<T, kQuantiles> table;
    for (size_t i = 0; i < kQuantiles; ++i) table[i] = encode(quantiles()[i]);
    T* data = memory_.take_of<T>(raw.rows * raw.cols);
    fill_shared(team, raw.rows * raw.cols,
                [&](int64_t begin, int64_t end) { fill_from(table, random, data, begin, end); });
    raw.data = reinterpret_cast<const uint8_t*>(data);
    raw.row_bytes = raw.cols * static_cast<int64_t>(sizeof(T));
  }

  void fill_fp8_block(RawMatrix& raw, ThreadTeam* team, const Stream& random, double deviation) {
    fill<uint8_t>(raw, team, random, [](float q) { return float_to_e4m3(q * kFp8Std); });
    const int64_t across = (raw.cols + 127) / 128, blocks = (raw.rows + 127) / 128 * across;
    float* scales = memory_.take_of<float>(blocks);
    const Stream other(seed_ + 1, raw.name);
    // Uniform in 0.75 .. 1.25, whose root mean square is sqrt(49/48).
    for (int64_t i = 0; i < blocks; ++i)
      scales[i] = static_cast<float>(deviation / kFp8Std / std::sqrt(49.0 / 48) *
                                     (0.75 + 0.5 * other.uniform(static_cast<uint64_t>(i))));
    raw.scales = reinterpret_cast<const uint8_t*>(scales);
    raw.scale_row_bytes = across * 4;
  }

  void fill_nvfp4(RawMatrix& raw, ThreadTeam* team, const Stream& random, double deviation) {
    uint8_t* codes = memory_.take(static_cast<size_t>(raw.rows * raw.cols / 2));
    uint8_t* scales = memory_.take(static_cast<size_t>(raw.rows * raw.cols / 16));
    fill_shared(team, raw.rows * raw.cols / 2,
                [&](int64_t begin, int64_t end) { fill_bytes(random, codes, begin, end); });
    const Stream other(seed_ + 1, raw.name);
    fill_shared(team, raw.rows * raw.cols / 16, [&](int64_t begin, int64_t end) {
      fill_bytes(other, scales, begin, end);
      for (int64_t i = begin; i < end; ++i) scales[i] = static_cast<uint8_t>(kFirstScale + (scales[i] & 7));
    });
    raw.data = codes;
    raw.row_bytes = raw.cols / 2;
    raw.scales = scales;
    raw.scale_row_bytes = raw.cols / 16;
    raw.global_scale = static_cast<float>(deviation / (kCodeRms * kScaleRms));
  }

  QuantRules rules_;
  mutable std::mutex rules_mutex_;  // matching a name needs scratch
  Layout layout_;
  uint64_t seed_;
  WeightMemory memory_;
};

}  // namespace

std::unique_ptr<WeightSource> dummy_weights(const json& config, uint64_t seed) {
  return std::make_unique<DummyWeights>(config, seed);
}

}  // namespace mettle

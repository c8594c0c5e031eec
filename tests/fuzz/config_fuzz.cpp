// Arbitrary bytes as config.json: parsed, its quantisation rules asked, dummy weights made for it. The same bytes as
// the index of a sharded checkpoint.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/quant_rules.h"
#include "checkpoint/safetensors_index.h"
#include "checkpoint/weight_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* kModules[] = {"lm_head",
                                      "model.embed_tokens",
                                      "model.layers.0.mlp.experts.3.up_proj",
                                      "model.language_model.layers.11.self_attn.q_proj",
                                      "mtp.fc",
                                      "",
                                      "model.layers.0.mlp.experts.gate_up_proj"};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    mettle::read_weight_map(text, "index");
  } catch (const mettle::Error& error) {
    if (error.code == mettle::Code::kInternal) abort();
  }
  try {
    const nlohmann::json config = mettle::parse_json_object(text, "config.json", 64);
    const mettle::ConfigReader reader(config, "config");
    for (const auto& [key, value] : config.items()) {
      try {
        reader.integers(key);
        reader.texts(key);
        reader.number(key, -1e300, 1e300);
        reader.child(key);
      } catch (const mettle::Error&) {
      }
    }
    const mettle::QuantRules rules(config);
    for (const char* module : kModules) rules.format_of(module);
    const auto source = mettle::dummy_weights(config, 1);
    for (const char* module : kModules)
      if (source->has(module)) source->matrix(module, 3, 32);
    source->release();
  } catch (const mettle::Error& error) {
    if (error.code == mettle::Code::kInternal) abort();
  }
  return 0;
}

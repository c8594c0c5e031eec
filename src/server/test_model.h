// The embedded model's tokenizer and template for tests. Only tests include it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file_map.h"
#include "server/text_model.h"

namespace mettle {

inline const TextModel& tiny_text_model() {
  static const TextModel model = [] {
    const std::string folder = METTLE_SOURCE_DIR "/models/mettle-tiny/";
    SamplingDefaults sampling;
    sampling.temperature = 0.6;
    sampling.top_k = 20;
    return TextModel("mettle-tiny", Tokenizer::from_file(folder + "tokenizer.json"),
                     read_file(folder + "chat_template.jinja", 1 << 20), sampling);
  }();
  return model;
}

inline std::vector<int32_t> tiny_ids(std::string_view text) { return tiny_text_model().tokenizer().encode(text); }

}  // namespace mettle

#include <gtest/gtest.h>

#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"

namespace mettle {
namespace {

TEST(Checkpoint, ReadsTheEmbeddedModel) {
  const ModelFolder folder = open_model_folder(METTLE_SOURCE_DIR "/models/mettle-tiny");
  EXPECT_EQ(folder.eos_ids, (std::vector<int32_t>{6135, 6137}));
  const auto weights = open_weights(folder.path, folder.config);
  const RawMatrix m = weights->matrix("model.language_model.layers.0.mlp.experts.0.gate_proj", 128, 256);
  EXPECT_EQ(m.format, WeightFormat::kNvfp4);
  EXPECT_NE(m.at(3, 7), m.at(3, 8));
}

}  // namespace
}  // namespace mettle

// What the layer blocks (attention, gdn, moe) have in common.
#pragma once
#include "models/model.h"
#include "models/weight_reader.h"

namespace mettle {

// What all layers of a model share.
struct BlockContext {
  int hidden = 0;
  float eps = 1e-6f;
  bool norm_plus_one = false;  // RMSNorm weights are 1 + w (q and k norm included)
  ModelOptions options;
  Layout layout() const { return layout_of(options.device); }
};

// Bytes that packing these segments in that layout will take.
void count_bytes(WeightBytes& bytes, Layout layout, const RawSegments& segments);
void count_bytes(WeightBytes& bytes, const std::vector<float>& values);

TensorView view_of(void* data, DType dtype, Shape shape);

}  // namespace mettle

// A WeightSource that also is a WeightListener hears which weights a model's plan asks for, with their sizes.
#pragma once
#include <cstdint>
#include <string>

#include "tensor/tensor_view.h"

namespace mettle {

class WeightListener {
 public:
  virtual ~WeightListener() = default;
  // Of the whole model, before a rank's part is cut out; the same module may be asked for again and again.
  virtual void wants_matrix(const std::string& module, int64_t rows, int64_t cols) = 0;
  virtual void wants_vector(const std::string& name, const Shape& shape) = 0;
};

}  // namespace mettle

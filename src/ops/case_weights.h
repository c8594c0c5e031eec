// Weights made for cases: raw matrices as a checkpoint would hold them, with their memory. The oracle reads the raw
// form, backends the packed one.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/case_random.h"
#include "ops/packed.h"
#include "tensor/buffer.h"
#include "tensor/tensor_view.h"
#include "tensor/weight.h"

namespace mettle {

enum class CaseFill : uint8_t {
  kTypical,     // bell-shaped, every row and every segment with a spread of its own
  kWideScales,  // block scales down to the subnormals of their format (nvfp4, fp8); else rows over many magnitudes
  kExact,       // integers times powers of two, dense, with every E4M3 mantissa: every order of summation agrees
};

// Memory and view of one weight. Copies share the memory.
struct CaseWeight {
  RawSegments raw;
  std::vector<std::shared_ptr<std::vector<uint8_t>>> memory;
  PackedMatrix packed(Layout layout) const { return pack(layout, raw); }
};

// Segments of `heights` rows each; segments differ in their global scale. gain multiplies the typical magnitude
// 1/sqrt(cols).
CaseWeight case_weight(WeightFormat format, const std::vector<int64_t>& heights, int64_t cols, CaseFill fill,
                       CaseRandom& random, double gain = 1);
// A weight of given values; those that the format cannot hold are rounded to it. nvfp4: every value must be a multiple
// of E2M1 with a block scale of one; fp8: an E4M3 value.
CaseWeight case_weight_of(WeightFormat format, int64_t rows, int64_t cols,
                          const std::function<double(int64_t row, int64_t col)>& value);

// Changes one weight. nvfp4: anything but zero sets the block's scale to one and must be an E2M1 value (times the
// global scale); other formats: in units of the weight, without global and row scales.
void case_set(CaseWeight& weight, int64_t row, int64_t col, double value);

// Rows of activations in the op's input dtype, kept as the float32 values they hold.
class CaseInput {
 public:
  CaseInput() = default;
  CaseInput(int64_t rows, int64_t cols, DType dtype);
  float get(int64_t row, int64_t col) const;
  void set(int64_t row, int64_t col, double value);  // rounded once to the dtype
  void fill_normal(CaseRandom& random, double scale = 1);
  void fill_row_nan(int64_t row);
  TensorView view() const { return {data_.data(), dtype_, shape_}; }
  CaseInput copy() const;
  int64_t rows() const { return shape_[0]; }
  int64_t cols() const { return shape_[1]; }

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  Buffer data_;
};

}  // namespace mettle

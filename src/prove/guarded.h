// Memory that a backend writes while it is judged: guard bands at both ends, prefilled with a NaN payload that no
// conversion writes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ops/verdict.h"
#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace mettle {

class Guarded {
 public:
  Guarded() = default;
  Guarded(std::string name, Shape shape, DType dtype);

  // Fills body and guards with the payload of that pass (0 or 1). The body of pass 0 lies at a multiple of 64 bytes,
  // that of pass 1 at one of 16 alone. Asked for its place before, it may have moved.
  void prefill(int pass);
  // Guards alone; the body keeps what it holds (states, caches, residuals that are updated in place).
  void arm();
  TensorView view() const { return {body_, dtype_, shape_}; }
  uint8_t* body() const { return body_; }
  size_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

  // OVERRUN, INCOMPLETE_WRITE (an element still holds the payload), NOT_FINITE, or OK.
  Verdict check() const;
  Verdict check_guards() const;
  // The elements as float32; bf16 is widened.
  std::vector<float> values() const;
  std::vector<uint8_t> copy() const { return {body_, body_ + bytes_}; }

 private:
  std::string name_;
  Shape shape_;
  DType dtype_ = DType::kF32;
  Buffer storage_;
  uint8_t* body_ = nullptr;
  size_t bytes_ = 0;
  int pass_ = 0;
};

}  // namespace mettle

// A view of memory somebody else owns: pointer, dtype, up to four sizes, row-major, last dimension contiguous.
// ShapeCheck compares views with symbolic sizes: a name binds on first use, later mismatches say which dimension of
// which tensor:  "moe.scales: must be [experts=8, rows=256, 8] e4m3, got [8, 256, 16] e4m3". It runs before every op of
// every step, so it allocates nothing unless it fails; names are literals.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "tensor/dtype.h"

namespace mettle {

struct Shape {
  std::array<int64_t, 4> size{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);
  int64_t operator[](int i) const { return size[static_cast<size_t>(i)]; }
  int64_t elements() const;
  bool operator==(const Shape&) const = default;
  std::string text() const;  // [8, 256]
};

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  size_t bytes() const { return static_cast<size_t>(shape.elements()) * size_of(dtype); }
};

class ShapeCheck {
 public:
  using Dim = std::variant<int64_t, std::string_view>;  // a size, or the name of one
  // Fails with kInternal when dtype, rank or a size differs, or when data is null while the shape has elements.
  void operator()(std::string_view tensor, const TensorView& view, DType dtype, std::initializer_list<Dim> dims);
  int64_t operator[](std::string_view name) const;  // the size that a name was bound to

 private:
  struct Bound {
    std::string_view name;
    int64_t size = 0;
  };
  int find(std::string_view name) const;  // index in bound_, count_ when it is not bound
  std::string text(std::initializer_list<Dim> dims, int known) const;

  std::array<Bound, 16> bound_;
  int count_ = 0;
};

}  // namespace mettle

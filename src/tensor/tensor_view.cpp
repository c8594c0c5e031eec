#include "tensor/tensor_view.h"

#include <fmt/format.h>

namespace mettle {

Shape::Shape(std::initializer_list<int64_t> sizes) : rank(static_cast<int>(sizes.size())) {
  CHECK(sizes.size() <= size.size(), "at most 4 dimensions");
  size_t i = 0;
  for (const int64_t s : sizes) size[i++] = s;
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= (*this)[i];
  return n;
}

std::string Shape::text() const { return fmt::format("[{}]", fmt::join(size.begin(), size.begin() + rank, ", ")); }

void ShapeCheck::operator()(std::string_view tensor, const TensorView& view, DType dtype,
                            std::initializer_list<Dim> dims) {
  bool right = view.dtype == dtype && view.shape.rank == static_cast<int>(dims.size());
  std::string want;
  int i = 0;
  for (const Dim& dim : dims) {
    want += i > 0 ? ", " : "";
    const int64_t got = i < view.shape.rank ? view.shape[i] : -1;
    int64_t size = 0;
    if (const auto* name = std::get_if<std::string_view>(&dim)) {
      const auto [it, fresh] = bound_.try_emplace(std::string(*name), got);
      size = it->second;
      want += fresh ? std::string(*name) : fmt::format("{}={}", *name, size);
    } else {
      size = std::get<int64_t>(dim);
      want += std::to_string(size);
    }
    right = right && got == size;
    ++i;
  }
  if (!right)
    fail(Code::kInternal, fmt::format("{}: must be [{}] {}, got {} {}", tensor, want, name_of(dtype), view.shape.text(),
                                      name_of(view.dtype)));
  if (view.data == nullptr && view.shape.elements() > 0)
    fail(Code::kInternal, fmt::format("{}: must point to {} bytes, got null", tensor, view.bytes()));
}

int64_t ShapeCheck::operator[](std::string_view name) const {
  const auto it = bound_.find(name);
  CHECK(it != bound_.end(), fmt::format("no size named {}", name));
  return it->second;
}

}  // namespace mettle

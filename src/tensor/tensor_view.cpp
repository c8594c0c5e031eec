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

int ShapeCheck::find(std::string_view name) const {
  int i = 0;
  while (i < count_ && bound_[static_cast<size_t>(i)].name != name) ++i;
  return i;
}

void ShapeCheck::operator()(std::string_view tensor, const TensorView& view, DType dtype,
                            std::initializer_list<Dim> dims) {
  const int known = count_;
  bool right = view.dtype == dtype && view.shape.rank == static_cast<int>(dims.size());
  int d = 0;
  for (const Dim& dim : dims) {
    const int64_t got = d < view.shape.rank ? view.shape[d] : -1;
    ++d;
    if (const auto* name = std::get_if<std::string_view>(&dim)) {
      const int at = find(*name);
      if (at == count_) {
        CHECK(at < std::ssize(bound_), fmt::format("{}: more than {} names of sizes", tensor, bound_.size()));
        bound_[static_cast<size_t>(count_++)] = {*name, got};
      }
      right = right && got == bound_[static_cast<size_t>(at)].size;
    } else {
      right = right && got == std::get<int64_t>(dim);
    }
  }
  if (!right)
    fail(Code::kInternal, fmt::format("{}: must be [{}] {}, got {} {}", tensor, text(dims, known), name_of(dtype),
                                      view.shape.text(), name_of(view.dtype)));
  if (view.data == nullptr && view.shape.elements() > 0)
    fail(Code::kInternal, fmt::format("{}: must point to {} bytes, got null", tensor, view.bytes()));
}

// Names that were bound before, or earlier in this list, with their sizes: known counts those before.
std::string ShapeCheck::text(std::initializer_list<Dim> dims, int known) const {
  std::string out;
  for (const Dim& dim : dims) {
    out += out.empty() ? "" : ", ";
    const auto* name = std::get_if<std::string_view>(&dim);
    if (name == nullptr) {
      out += std::to_string(std::get<int64_t>(dim));
    } else if (const int at = find(*name); at == known) {
      out += *name;
      ++known;
    } else {
      out += fmt::format("{}={}", *name, bound_[static_cast<size_t>(at)].size);
    }
  }
  return out;
}

int64_t ShapeCheck::operator[](std::string_view name) const {
  const int at = find(name);
  CHECK(at < count_, fmt::format("no size named {}", name));
  return bound_[static_cast<size_t>(at)].size;
}

}  // namespace mettle

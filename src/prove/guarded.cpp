#include "prove/guarded.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace mettle {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kShift = 16;  // of the second pass: what a kernel may take for granted
// Signalling NaNs with a payload: arithmetic would make them quiet, a conversion from float32 would cut the payload.
constexpr uint32_t kPayload[2] = {0x7F81A5C3u, 0xFFA35A3Cu};

uint8_t guard_byte(size_t i) { return static_cast<uint8_t>(0xA5 ^ (i * 37)); }

// Byte i of the band behind the body; the band before it runs backwards.
struct Bands {
  std::array<uint8_t, kGuard> before, after;
  Bands() {
    for (size_t i = 0; i < kGuard; ++i) before[kGuard - 1 - i] = after[i] = guard_byte(i);
  }
};
const Bands& bands() {
  static const Bands bands;
  return bands;
}

// Elements that still hold the payload.
template <class T>
int64_t unwritten_of(const uint8_t* body, int64_t n, T payload) {
  const T* values = reinterpret_cast<const T*>(body);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += values[i] == payload;
  return count;
}

// NaN and infinity: the exponent's bits are all ones.
template <class T>
bool all_finite(const uint8_t* body, int64_t n, T exponent) {
  const T* values = reinterpret_cast<const T*>(body);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += (values[i] & exponent) == exponent;
  return count == 0;
}

// One element of the payload.
uint32_t payload_of(DType dtype, int pass) {
  if (size_of(dtype) == 4) return kPayload[pass];
  return pass == 0 ? 0x7FA5u : 0xFFB3u;
}

}  // namespace

Guarded::Guarded(std::string name, Shape shape, DType dtype) : name_(std::move(name)), shape_(shape), dtype_(dtype) {
  bytes_ = static_cast<size_t>(shape.elements()) * size_of(dtype);
  storage_ = Buffer(bytes_ + 2 * kGuard + kShift);
  body_ = storage_.data() + kGuard;
}

void Guarded::arm() {
  std::copy_n(bands().before.data(), kGuard, body_ - kGuard);
  std::copy_n(bands().after.data(), kGuard, body_ + bytes_);
}

void Guarded::prefill(int pass) {
  pass_ = pass;
  body_ = storage_.data() + kGuard + (pass == 0 ? 0 : kShift);
  arm();
  const uint32_t p = payload_of(dtype_, pass);
  const size_t n = static_cast<size_t>(shape_.elements());
  if (size_of(dtype_) == 4)
    std::fill_n(reinterpret_cast<uint32_t*>(body_), n, p);
  else if (size_of(dtype_) == 2)
    std::fill_n(reinterpret_cast<uint16_t*>(body_), n, static_cast<uint16_t>(p));
  else
    std::fill_n(body_, bytes_, static_cast<uint8_t>(p));
}

Verdict Guarded::check_guards() const {
  if (std::memcmp(body_ - kGuard, bands().before.data(), kGuard) == 0 &&
      std::memcmp(body_ + bytes_, bands().after.data(), kGuard) == 0)
    return {};
  for (size_t i = 0; i < kGuard; ++i) {
    const bool before = body_[-static_cast<ptrdiff_t>(i) - 1] != guard_byte(i);
    if (before || body_[bytes_ + i] != guard_byte(i))
      return refuse(VerdictCode::kOverrun,
                    fmt::format("byte {}{} of {} written", before ? "-" : "end+", before ? i + 1 : i, name_),
                    fmt::format("{} bytes", bytes_), fmt::format("{}: wrote outside its {} bytes", name_, bytes_));
  }
  return {};
}

Verdict Guarded::check() const {
  Verdict v = check_guards();
  if (!v.ok()) return v;
  const uint32_t p = payload_of(dtype_, pass_);
  const int64_t cols = shape_.rank > 0 ? shape_[shape_.rank - 1] : 1;
  const int64_t n = shape_.elements();
  const auto place = [&](int64_t i) {
    return fmt::format("{}[row {}, column {}]", name_, i / std::max<int64_t>(cols, 1), i % std::max<int64_t>(cols, 1));
  };
  const bool wide = size_of(dtype_) == 4;
  const auto holds_payload = [&](int64_t i) {
    return wide ? reinterpret_cast<const uint32_t*>(body_)[i] == p
                : reinterpret_cast<const uint16_t*>(body_)[i] == static_cast<uint16_t>(p);
  };
  const int64_t unwritten =
      wide ? unwritten_of<uint32_t>(body_, n, p) : unwritten_of<uint16_t>(body_, n, static_cast<uint16_t>(p));
  if (unwritten > 0) {
    int64_t first = 0;
    while (!holds_payload(first)) ++first;
    return refuse(VerdictCode::kIncompleteWrite, fmt::format("{} unwritten", unwritten), fmt::format("{} written", n),
                  fmt::format("{} is the first of {} elements left unwritten", place(first), unwritten));
  }
  if (dtype_ == DType::kI32) return {};
  if (wide ? all_finite<uint32_t>(body_, n, 0x7F800000u) : all_finite<uint16_t>(body_, n, uint16_t{0x7F80})) return {};
  for (int64_t i = 0; i < n; ++i) {
    const float x = dtype_ == DType::kBF16 ? bf16_to_float(reinterpret_cast<const uint16_t*>(body_)[i])
                                           : reinterpret_cast<const float*>(body_)[i];
    if (!std::isfinite(x))
      return refuse(VerdictCode::kNotFinite, fmt::format("{}", x), "finite", fmt::format("{} is {}", place(i), x));
  }
  return {};
}

std::vector<float> Guarded::values() const {
  std::vector<float> out(static_cast<size_t>(shape_.elements()));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = dtype_ == DType::kBF16 ? bf16_to_float(reinterpret_cast<const uint16_t*>(body_)[i])
                                    : reinterpret_cast<const float*>(body_)[i];
  return out;
}

}  // namespace mettle

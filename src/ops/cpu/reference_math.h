// What the `reference` backends share: plain float32 products on the packed layout, and scratch carved from a
// workspace. Every result depends on its own row alone, whatever the batch and the number of threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>

#include "ops/backend.h"
#include "tensor/tensor_view.h"

namespace mettle::reference {

// Rows that are handled together; a longer batch is cut into such pieces, so scratch does not grow with it.
inline constexpr int kRows = 64;

inline int members_of(const Stream& stream) { return stream.team == nullptr ? 1 : stream.team->members(); }

// Calls fn(item) for every item in [0, count), spread over the team.
template <class F>
void for_each(Stream& stream, int64_t count, F&& fn) {
  const auto work = [&](int member) {
    const Span span = share_of(count, member, members_of(stream));
    for (int64_t i = span.begin; i < span.end; ++i) fn(i);
  };
  if (stream.team == nullptr || count < 2) {
    for (int64_t i = 0; i < count; ++i) fn(i);
  } else {
    stream.team->run(work);
  }
}

// Hands out 64-byte aligned pieces of a workspace; with a null workspace it only counts.
class Carver {
 public:
  explicit Carver(const Workspace& ws) : data_(ws.data) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) & ~size_t{63};
    return piece;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* data_;
  size_t used_ = 0;
};

// `rows` rows of `width` values each, one after the other.
struct Rows {
  float* data = nullptr;
  int64_t width = 0;
  float* operator[](int64_t row) const { return data + row * width; }
};
inline Rows take_rows(Carver& carver, int64_t rows, int64_t width) { return {carver.take<float>(rows * width), width}; }

// out[i] = row first + i of x in float32.
void widen(const TensorView& x, int64_t first, int64_t count, const Rows& out);
// Rounds to the activation dtype where the numerics declare it.
void round_if(bool to_bf16, float* values, int64_t count);

// y[i][row] = row_scale * sum_k x[i][k] w[row][k] for the 16 rows of one tile; k ascending, one float32 sum per output.
void product_tile(const PackedMatrix& w, int64_t tile, std::span<const float* const> x, std::span<float* const> y);
// All tiles, spread over the team, for rows 0..count-1 (count <= kRows).
void product(const PackedMatrix& w, const Rows& x, const Rows& y, int64_t count, Stream& stream);

inline float sigmoid(float x) { return 1.f / (1.f + std::exp(-x)); }
inline float silu(float x) { return x / (1.f + std::exp(-x)); }
// sum of a[i] b[i], in 16 partial sums.
float dot(const float* a, const float* b, int64_t count);
// 1 / sqrt(mean of squares + eps), the mean in float64.
float inverse_rms(const float* x, int64_t count, float eps);

// The reference reads every layout and shape on a CPU.
Verdict on_cpu(const Device& device);
std::vector<Tactic> plain_tactic();

}  // namespace mettle::reference

#include "base/error.h"
#include "tensor/gpu_check.h"
#include "tensor/rows_apart.h"
#include "tensor/rows_apart_element.h"

namespace mettle::gpu {
namespace {

constexpr int kThreads = 256;

// Of the whole block; every thread gets it. `memory`: of one type at a time.
template <class T, class Join>
__device__ T over_block(T own, T* memory, Join join) {
  const int tid = static_cast<int>(threadIdx.x);
  memory[tid] = own;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (tid < half) memory[tid] = join(memory[tid], memory[tid + half]);
  }
  __syncthreads();
  const T all = memory[0];
  __syncthreads();
  return all;
}

struct Element {
  double error;
  int64_t column;
};

// One block a row.
template <class Bits>
__global__ __launch_bounds__(kThreads) void rows_apart_kernel(const Bits* have, const Bits* need, int64_t cols,
                                                              RowApart* out) {
  __shared__ double sums[kThreads];
  __shared__ unsigned long long counts[kThreads];
  __shared__ Element elements[kThreads];
  have += int64_t{blockIdx.x} * cols;
  need += int64_t{blockIdx.x} * cols;
  double difference = 0, norm = 0;
  unsigned long long bits = 0;
  Element bad{0, cols};  // the first that is not finite
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    bits += apart::hash(have[c], c);
    const float a = apart::value(have[c]), b = apart::value(need[c]);
    if (!apart::finite(a) || !apart::finite(b)) {
      if (have[c] != need[c] && c < bad.column) bad.column = c;
      continue;
    }
    const double apart = double{a} - double{b};
    difference += apart * apart;
    norm += double{b} * double{b};
  }
  const auto add = [](auto x, auto y) { return x + y; };
  difference = over_block(difference, sums, add);
  norm = over_block(norm, sums, add);
  bits = over_block(bits, counts, add);
  bad = over_block(bad, elements, [](const Element& x, const Element& y) { return x.column <= y.column ? x : y; });
  Element worst{0, 0};
  const double rms = sqrt(norm / static_cast<double>(cols));
  for (int64_t c = threadIdx.x; bad.column == cols && c < cols; c += kThreads) {
    if (have[c] == need[c]) continue;
    const double a = double{apart::value(have[c])}, b = double{apart::value(need[c])};
    const double error = a == b ? 0 : fabs(a - b) / (fabs(b) + rms);
    if (error > worst.error) worst = {error, c};
  }
  worst = over_block(worst, elements, [](const Element& x, const Element& y) {
    return x.error > y.error || (x.error == y.error && x.column <= y.column) ? x : y;
  });
  if (threadIdx.x != 0) return;
  RowApart& row = out[blockIdx.x];
  row.difference = sqrt(difference);
  row.norm = sqrt(norm);
  row.element = worst.error;
  row.finite = bad.column == cols;
  row.column = row.finite ? worst.column : bad.column;
  row.bits = bits;
}

template <class Bits>
void enqueue(const void* have, const void* need, int64_t rows, int64_t cols, RowApart* out, void* stream) {
  rows_apart_kernel<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const Bits*>(have), static_cast<const Bits*>(need), cols, out);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void rows_apart(const void* have, const void* need, DType dtype, int64_t rows, int64_t cols, RowApart* out,
                void* stream) {
  if (rows == 0) return;
  switch (dtype) {
    case DType::kF32:
      return enqueue<uint32_t>(have, need, rows, cols, out, stream);
    case DType::kBF16:
      return enqueue<uint16_t>(have, need, rows, cols, out, stream);
    case DType::kE4M3:
      return enqueue<uint8_t>(have, need, rows, cols, out, stream);
    default:
      fail(Code::kInternal, "rows_apart of another dtype");
  }
}

}  // namespace mettle::gpu

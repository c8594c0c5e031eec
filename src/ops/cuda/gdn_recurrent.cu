#include "ops/cuda/gdn_recurrent.h"

#include "ops/cuda/device/gdn_conv.cuh"
#include "ops/cuda/device/gdn_vectors.cuh"
#include "ops/cuda/gdn_chunked.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

// norm(o) * w * silu(z): a warp per row and value head.
__global__ __launch_bounds__(256) void gdn_norm_kernel(GdnRecurrent a) {
  const int64_t item = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  ptx::trigger();
  ptx::wait();
  if (item >= int64_t{a.rows} * a.value_heads || a.row_sequence[item / a.value_heads] < 0) return;
  float4 o[2];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    o[j] = i < a.dv ? *reinterpret_cast<const float4*>(a.read + item * a.dv + i) : make_float4(0, 0, 0, 0);
    squares += o[j].x * o[j].x + o[j].y * o[j].y + o[j].z * o[j].z + o[j].w * o[j].w;
  }
  const float scale = 1.f / sqrtf(warp_sum(squares) / static_cast<float>(a.dv) + a.eps);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    if (i < a.dv)
      store_core(a.core + item * a.dv + i, o[j], scale, *reinterpret_cast<const float4*>(a.norm + i),
                 *reinterpret_cast<const float4*>(a.z + item * a.dv + i));
  }
}

}  // namespace

void gdn_recurrent(const GdnRecurrent& call, const GdnWeights& weights, const uint16_t* x, float* partial, void* stream,
                   const GdnChunks* chunks) {
  const auto on = static_cast<cudaStream_t>(stream);
  GdnRecurrent a = call;
  a.shares = gdn_project(a, weights, x, stream);
  if (gdn_decodes(a)) {
    gdn_decode(a, stream);
  } else {
    if (chunks != nullptr && a.most_q > kGdnShort) {
      gdn_chunked(a, *chunks, stream);
    } else {
      const int units = gdn_conv_units(a), parts = (units + kGdnConvWarps - 1) / kGdnConvWarps;
      launch({.grid = dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>(parts)),
              .block = dim3(kGdnConvWarps * 32),
              .stream = on},
             gdn_conv_kernel, a, units);
      a.four_rows&& a.most_q > 1 ? gdn_four_rows(a, stream) : gdn_one_row(a, stream);
    }
    const int64_t blocks = (int64_t{a.rows} * a.value_heads + 7) / 8;
    launch({.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(256), .stream = on}, gdn_norm_kernel, a);
  }
  if (!gdn_output_tiles(a, weights, partial, stream)) product(weights.out, a.core, a.rows, partial, on);
}

}  // namespace mettle::cuda

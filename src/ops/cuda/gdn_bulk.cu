// See gdn_bulk.h.
#include "ops/cuda/gdn_bulk.h"

#include "ops/cuda/device/bulk_order.cuh"
#include "ops/cuda/device/gdn_few_rows.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

struct Start {
  BulkOrder order;
  P64View ba;
  float* ba_out;
  int ba_blocks;
  int32_t* tickets;
  int ticket_count;
};

// What needs x as it is: the small product of b and a (a tile of it against sixteen rows of x a block) comes first,
// since its blocks take the longest; then x in the order of the operand.
__global__ __launch_bounds__(256) void gdn_bulk_start_kernel(Start p) {
  __shared__ float4 partial[kGdnWarps][kGdnFewRows / 8][32];
  const int index = static_cast<int>(blockIdx.x);
  ptx::trigger();
  if (index >= p.ba_blocks) {
    ptx::wait();
    order_chunk(p.order, (index - p.ba_blocks) * 256 + static_cast<int>(threadIdx.x));
    return;
  }
  const int first = index / p.ba.tiles * kGdnFewRows;
  gdn_few_rows<p64::Bf16Stream, kGdnFewRows / 8, kGdnWarps, false>(p.ba, p.order.x + int64_t{first} * p.ba.cols,
                                                                   p.ba_out + int64_t{first} * p.ba.rows,
                                                                   p.order.rows - first, index % p.ba.tiles, partial);
  if (index > 0) return;
  ptx::wait();  // warps without a share of k have not
  for (int i = static_cast<int>(threadIdx.x); i < p.ticket_count; i += 256) p.tickets[i] = 0;
}

}  // namespace

void gdn_bulk_project(const GdnRecurrent& a, const BulkScratch& scratch, const GdnWeights& weights, const uint16_t* x,
                      void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const P64View qkv = view_of(weights.qkv), ba = view_of(weights.ba);
  const Start start = {.order = {.x = x,
                                 .ordered = scratch.ordered,
                                 .rows = a.rows,
                                 .cols = qkv.cols,
                                 .tiles_k = bulk_tiles_k(qkv),
                                 .padded = bulk_padded_rows(a.rows)},
                       .ba = ba,
                       .ba_out = a.ba,
                       .ba_blocks = ba.tiles * ((a.rows + kGdnFewRows - 1) / kGdnFewRows),
                       .tickets = a.tickets,
                       .ticket_count = gdn_tickets(a)};
  const int chunks = start.order.padded * start.order.tiles_k * 8;
  launch(
      {.grid = dim3(static_cast<unsigned>(start.ba_blocks + (chunks + 255) / 256)), .block = dim3(256), .stream = on},
      gdn_bulk_start_kernel, start);
  bulk_products({.first = qkv,
                 .second = view_of(weights.z),
                 .first_y = a.qkv,
                 .second_y = a.z,
                 .x = scratch.ordered,
                 .rows = a.rows},
                on);
}

void gdn_bulk(const GdnRecurrent& a, const BulkScratch& scratch, const GdnWeights& weights, const uint16_t* x,
              float* partial, void* stream) {
  gdn_bulk_project(a, scratch, weights, x, stream);
  gdn_decode(a, stream);
  bulk_product(view_of(weights.out), a.core, a.rows, scratch, partial, static_cast<cudaStream_t>(stream));
}

}  // namespace mettle::cuda

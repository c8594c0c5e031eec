// What `fused_small` offers, and how the shared memory of its blocks is dealt: host code of every build.
#include <gtest/gtest.h>

#include <stdexcept>

#include "ops/cuda/moe_few_rows_scratch.h"
#include "ops/cuda/moe_fused_rows.h"
#include "tensor/device.h"

namespace mettle {
namespace {

MoeProblem moe() {
  return {.hidden = 2048, .experts = 256, .top_k = 8, .width = 512, .shared_width = 512, .shared_gate = true};
}

std::vector<std::string> tactics(const MoeProblem& p, int multiprocessors, size_t shared_per_block) {
  Device d;
  d.kind = DeviceKind::kCuda;
  d.sm = 90, d.multiprocessors = multiprocessors, d.shared_per_block = shared_per_block;
  std::vector<std::string> names;
  for (const Backend<MoeOp>* b : backends_of<MoeOp>())
    if (b->name == "fused_small" && b->kind == DeviceKind::kCuda)
      for (const Tactic& t : b->tactics(p, d)) names.push_back(t.name);
  return names;
}

TEST(CudaFused, RowsIsOfferedWhereABlockHoldsEightOfThem) {
  const std::vector<std::string> one{"packets"}, both{"packets", "rows"};
  EXPECT_EQ(tactics(moe(), 132, 227 << 10), both);
  EXPECT_EQ(tactics(moe(), 132, 0), one);
  EXPECT_EQ(tactics(moe(), 0, 227 << 10), one);
  EXPECT_EQ(cuda::moe_fused_rows_most(moe(), 132, 227 << 10), 16);
  EXPECT_EQ(cuda::moe_fused_rows_most(moe(), 108, 163 << 10), 8);
  const size_t asked = static_cast<size_t>(cuda::moe_fused_rows_shared(moe(), 16, 132).bytes);
  EXPECT_EQ(cuda::moe_fused_rows_most(moe(), 132, asked + (24 << 10)), 16);  // and what the kernel has of its own
  EXPECT_EQ(cuda::moe_fused_rows_most(moe(), 132, asked + (24 << 10) - 1), 8);
  EXPECT_EQ(cuda::moe_fused_rows_most(moe(), 170, 99 << 10), 0);
  MoeProblem p = moe();
  p.hidden = 4096, p.experts = 512, p.top_k = 10;
  EXPECT_EQ(cuda::moe_fused_rows_most(p, 132, 227 << 10), 8);
  p.width = p.shared_width = 2048;
  EXPECT_EQ(tactics(p, 132, 227 << 10), one);
}

// Every tile row of every slot has a block, whatever the union is, and none has more than its table holds.
TEST(CudaFused, ATableHoldsTheTileRowsOfAnyUnion) {
  for (const int blocks : {1, 3, 108, 132})
    for (const int width : {32, 512, 2048}) {
      MoeProblem p = moe();
      p.width = p.shared_width = width;
      const int tiles = width / 8;
      for (const int rows : {8, 16}) {
        const auto s = cuda::moe_fused_rows_shared(p, rows, blocks);
        for (int slots = 1; slots <= rows * p.top_k + 1; ++slots) {
          const int most = (slots * tiles + blocks - 1) / blocks;
          EXPECT_LE(most, s.items);
        }
        for (int block = 0; block < blocks; ++block) {
          int of_a_slot = 0;
          for (int tile = block; tile < tiles; tile += blocks) ++of_a_slot;
          EXPECT_LE(of_a_slot, s.tiles_of_slot);
        }
      }
    }
}

TEST(CudaFused, WhatABlockHoldsDoesNotOverlap) {
  for (const int hidden : {512, 2048, 4096})
    for (const int width : {32, 48, 512, 1024})
      for (const int shared_width : {0, width})
        for (const int rows : {8, 16}) {
          MoeProblem p = moe();
          p.hidden = hidden, p.width = width, p.shared_width = shared_width, p.shared_gate = shared_width > 0;
          const auto s = cuda::moe_fused_rows_shared(p, rows, 132);
          const int pairs = rows * (p.top_k + (shared_width > 0 ? 1 : 0));
          EXPECT_GE(s.x_stride, hidden);
          EXPECT_EQ(s.parts, rows * s.x_stride * 2);
          EXPECT_GE(s.table - s.parts, pairs * s.tiles_of_slot * (hidden / 512) * 64);
          EXPECT_GE(s.table - s.parts, rows * (p.experts + (p.shared_gate ? 1 : 0)) * 4);
          EXPECT_EQ(s.scales - s.table, s.items * cuda::kFusedRowsItem);
          EXPECT_GE(s.products - s.scales, s.items * 64);
          EXPECT_GE(s.h_stride, width);
          EXPECT_GE(s.products, pairs * s.h_stride * 2);
          EXPECT_EQ(s.bytes - s.products, pairs * 64);
          for (const int at : {s.parts, s.table, s.scales, s.products, s.x_stride * 2, s.h_stride * 2})
            EXPECT_EQ(at % 16, 0);
        }
}

}  // namespace
}  // namespace mettle

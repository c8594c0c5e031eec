#include "ops/cpu/kernels/vec_avx512.h"
//
#include "ops/cpu/kernels/product_bf16.h"
#include "ops/cpu/kernels/product_f32.h"
//
#include "ops/cpu/kernels/attend_pairs.h"
#include "ops/cpu/kernels/delta_chunk.h"
#include "ops/cpu/kernels/elementwise.h"

namespace mettle::cpu {

const Kernels kernels_avx512bf16 = {
    .gemv_f32 = {4, nullptr, nullptr, gemv_f32},
    .gemm_f32 = {Vec::kPanelTiles, panel_bytes_f32, prepare_f32, gemm_f32},
    .gemv_bf16 = {4, nullptr, nullptr, gemv_bf16},
    .gemm_bf16 = {kPanelTilesBf16, panel_bytes_bf16, prepare_bf16, gemm_bf16},
    .has_bf16 = true,
    .widen = widen,
    .silu_mul = silu_mul,
    .round_to = round_to,
    .add = add,
    .normed = normed,
    .scaled = scaled,
    .rotate = rotate,
    .sigmoid = sigmoid,
    .silu = silu,
    .exp = exp_all,
    .max_finite = max_finite,
    .exp_sum = exp_sum,
    .dot = dot,
    .attend_f32 = attend<float>,
    .attend_bf16 = attend<uint16_t>,
    .attend_e4m3 = attend<float, uint8_t>,
    .attend_tile_f32 = attend_tile<FloatMul, float>,
    .attend_tile_bf16 = attend_tile<FloatMul, uint16_t>,
    .attend_tile_e4m3 = attend_tile<FloatMul, uint8_t>,
    .attend_pairs_bf16 = attend_tile<PairMul, uint16_t>,
    .attend_pairs_e4m3 = attend_tile<PairMul, uint8_t>,
    .to_e4m3 = to_codes,
    .delta = delta,
    .delta_chunk = delta_chunk,
};

}  // namespace mettle::cpu

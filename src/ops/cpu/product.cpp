#include "ops/cpu/product.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace mettle::cpu {

const Kernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kernels_scalar;
    case Isa::kAvx2:
      return kernels_avx2;
    case Isa::kAvx512:
      return kernels_avx512;
    case Isa::kAvx512Bf16:
      return kernels_avx512bf16;
  }
  fail(Code::kInternal, "cpu kernels: no such instruction set");
}

namespace {

bool gemm_can_win(const Tactic& t, const Device& device) { return t.isa != Isa::kScalar || !device.has(Isa::kAvx2); }

}  // namespace

std::vector<Tactic> isa_method_tactics(const Device& device) {
  std::vector<Tactic> tactics;
  for (const Tactic& t : isa_tactics(device)) {
    tactics.push_back({t.name + "/gemv", t.isa, static_cast<int>(Method::kGemv)});
    if (gemm_can_win(t, device)) tactics.push_back({t.name + "/gemm", t.isa, static_cast<int>(Method::kGemm)});
  }
  return tactics;
}

std::vector<Tactic> isa_gemm_tactics(const Device& device) {
  std::vector<Tactic> tactics;
  for (const Tactic& t : isa_tactics(device))
    if (gemm_can_win(t, device)) tactics.push_back({t.name + "/gemm", t.isa, static_cast<int>(Method::kGemm)});
  return tactics;
}

TileMatrix tile_matrix(const PackedMatrix& m) {
  return {.weights = static_cast<Weights>(m.payload),
          .rows = m.rows,
          .cols = m.cols,
          .tiles = m.tiles,
          .k_padded = m.k_padded,
          .tile_bytes = m.tile_bytes(),
          .data = m.data,
          .scales = m.scales,
          .row_scale = m.row_scale,
          .k_scale = m.k_scale,
          .k_blocks = (m.cols + 127) / 128};
}
static_assert(static_cast<int>(Payload::kNvfp4) == static_cast<int>(Weights::kNvfp4) &&
              static_cast<int>(Payload::kBf16) == static_cast<int>(Weights::kBf16) &&
              static_cast<int>(Payload::kF32) == static_cast<int>(Weights::kF32));

TileMatrix shape_of(WeightFormat format, int64_t rows, int64_t cols) {
  const Weights weights = format == WeightFormat::kNvfp4 ? Weights::kNvfp4
                          : format == WeightFormat::kF32 ? Weights::kF32
                                                         : Weights::kBf16;
  return {.weights = weights, .rows = rows, .cols = cols, .tiles = (rows + 15) / 16, .k_padded = cols};
}

Product product_of(const Tactic& tactic, Method method, Activation activation, WeightFormat format) {
  const Kernels& k = kernels_of(tactic.isa);
  if (k.has_bf16 && activation == Activation::kBf16 && format != WeightFormat::kF32)
    return {method == Method::kGemv ? &k.gemv_bf16 : &k.gemm_bf16, true};
  return {method == Method::kGemv ? &k.gemv_f32 : &k.gemm_f32, false};
}

void multiply_tiles(const Product& product, const TileMatrix& m, Span tiles, void* panel, const InRows& in,
                    const OutRows& out) {
  const ProductKernel& k = *product.kernel;
  for (int64_t t = tiles.begin; t < tiles.end; t += k.chunk_tiles) {
    const int count = static_cast<int>(std::min<int64_t>(k.chunk_tiles, tiles.end - t));
    if (k.prepare != nullptr) k.prepare(m, t, count, panel);
    k.multiply(m, t, count, panel, in, out);
  }
}

void prefetch_tile(const TileMatrix& m, int64_t tile) {
  constexpr int64_t kPayload = 2048, kScales = 512;  // as far as the kernels look ahead
  const uint8_t* payload = m.tile(tile);
  for (int64_t b = 0; b < std::min(kPayload, m.tile_bytes); b += 64) __builtin_prefetch(payload + b, 0, 2);
  if (m.weights != Weights::kNvfp4) return;
  const uint8_t* scales = m.scales + tile * m.k_padded;
  for (int64_t b = 0; b < std::min(kScales, m.k_padded); b += 64) __builtin_prefetch(scales + b, 0, 2);
}

void multiply(const Product& product, const TileMatrix& m, uint8_t* panels, size_t panel_stride, const InRows& in,
              const OutRows& out, Stream& stream) {
  const int members = reference::members_of(stream), pieces = pieces_of(in.n, members);
  std::atomic<int> next{0};
  const auto work = [&](int member) {
    each_piece(next, pieces, member, members, [&](int piece) {
      multiply_tiles(product, m, share_of(m.tiles, piece, pieces), panels + static_cast<size_t>(member) * panel_stride,
                     in, out);
    });
  };
  if (members == 1) return work(0);
  stream.team->run(work);
}

void widen_rows(const Tactic& tactic, const Inputs& inputs, Stream& stream) {
  if (inputs.widened == nullptr || inputs.x.dtype == DType::kF32) return;
  const int64_t cols = inputs.x.shape[1];
  reference::for_each(stream, inputs.x.shape[0], [&](int64_t row) {
    kernels_of(tactic.isa).widen(inputs.x.as<const uint16_t>() + row * cols, inputs.widened + row * cols, cols);
  });
}

Verdict cpu_supports(const Device& device, std::initializer_list<std::pair<WeightFormat, int64_t>> formats_and_cols) {
  if (device.isas.empty()) return refuse(VerdictCode::kIsaMissing, device.name, "a CPU");
  for (const auto& [format, cols] : formats_and_cols) {
    if (cols < 1) return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} input columns", cols), "at least 1");
    if (format == WeightFormat::kNvfp4 && cols % 16 != 0)
      return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} input columns", cols),
                    "a multiple of 16 for nvfp4");
  }
  return {};
}

}  // namespace mettle::cpu

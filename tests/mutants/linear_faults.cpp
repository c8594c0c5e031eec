// Faults of linear: weights misread, sums in too few bits, inputs rounded; and what any op may do wrong.
#include "altered.h"
#include "common_faults.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = LinearArgs;
using C = Common<LinearOp>;

template <Misread how>
void misread(const Tactic& t, const A& a, Stream& s) {
  const Altered weight(*a.weight, how);
  A other = a;
  other.weight = &weight.view();
  right<LinearOp>(t, other, s);
}

// One column computed by hand; the others right.
template <float (*sum)(const A&, int row, int64_t column)>
void column_7_by(const Tactic& t, const A& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) out_of(a).at(r, 7) = sum(a, r, 7);
}
float x_at(const A& a, int row, int64_t k) {
  const int64_t at = int64_t{row} * a.problem.in + k;
  return a.x.dtype == DType::kF32 ? a.x.as<float>()[at] : bf16_to_float(a.x.as<uint16_t>()[at]);
}
float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }
float truncated(float x, int bits) {  // keeps so many bits of the significand
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & ~((1u << (24 - bits)) - 1));
}
float sum_in_bf16(const A& a, int row, int64_t c) {
  float sum = 0;
  for (int64_t k = 0; k < a.problem.in; ++k) sum = bf16(sum + x_at(a, row, k) * element(*a.weight, c, k));
  return sum * a.weight->row_scale[c];
}
float blocks_added_in_bf16(const A& a, int row, int64_t c) {
  float total = 0;
  for (int64_t begin = 0; begin < a.problem.in; begin += 128) {
    float sum = 0;
    for (int64_t k = begin; k < std::min<int64_t>(begin + 128, a.problem.in); ++k)
      sum += x_at(a, row, k) * element(*a.weight, c, k);
    total = bf16(total + sum);
  }
  return total * a.weight->row_scale[c];
}
float sum_in_14_bits(const A& a, int row, int64_t c) {
  float sum = 0;
  for (int64_t k = 0; k < a.problem.in; ++k) sum = truncated(sum + x_at(a, row, k) * element(*a.weight, c, k), 14);
  return sum * a.weight->row_scale[c];
}
float x_in_fp8(const A& a, int row, int64_t c) {
  float sum = 0;
  for (int64_t k = 0; k < a.problem.in; ++k)
    sum += e4m3_to_float(float_to_e4m3(x_at(a, row, k))) * element(*a.weight, c, k);
  return sum * a.weight->row_scale[c];
}
float scale_folded_in_bf16(const A& a, int row, int64_t c) {
  float sum = 0;
  for (int64_t k = 0; k < a.problem.in; ++k)
    sum += x_at(a, row, k) * bf16(element(*a.weight, c, k) * a.weight->row_scale[c]);
  return sum;
}
float last_column_left_out(const A& a, int row, int64_t c) {
  float sum = 0;
  for (int64_t k = 0; k + 1 < a.problem.in; ++k) sum += x_at(a, row, k) * element(*a.weight, c, k);
  return sum * a.weight->row_scale[c];
}
float denormal_products_flushed(const A& a, int row, int64_t c) {
  float sum = 0;
  for (int64_t k = 0; k < a.problem.in; ++k) {
    const float product = x_at(a, row, k) * element(*a.weight, c, k) * a.weight->row_scale[c];
    sum += std::fabs(product) < 0x1p-106f ? 0 : product;
  }
  return sum;
}

void one_sign(const Tactic& t, const A& a, Stream& s) {
  right<LinearOp>(t, a, s);
  out_of(a).at(a.rows - 1, 7) *= -1;
}
void column_001_percent(const Tactic& t, const A& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) out_of(a).at(r, 40) *= 1.0001f;
}
void wrong_from_33_rows_on(const Tactic& t, const A& a, Stream& s) {
  right<LinearOp>(t, a, s);
  if (a.rows >= 33) out_of(a).at(32, 1) *= 1.02f;
}
// Tiles of 16 rows; the last, partial one reads its weights' tile borders.
void tail_tile_two_percent(const Tactic& t, const A& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = a.rows / 16 * 16; r < a.rows; ++r) out_of(a).at(r, a.problem.out - 1) *= 1.02f;
}
void last_tile_of_columns_is_the_one_before(const Tactic& t, const A& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r)
    for (int64_t c = (a.problem.out - 1) / 16 * 16; c < a.problem.out; ++c)
      out_of(a).at(r, c) = out_of(a).at(r, c - 16);
}

constexpr Fault<LinearOp> kFaults[] = {
    {"nibbles_swapped", misread<Misread::kNibblesSwapped>},
    {"scale_of_neighbour_row", misread<Misread::kScaleOfNeighbourRow>},
    {"scale_of_next_group", misread<Misread::kScaleOfNextGroup>},
    {"e4m3_read_as_e5m2", misread<Misread::kE5m2>},
    {"subnormal_scales_flushed", misread<Misread::kSubnormalScalesFlushed>},
    {"block_scales_ignored", misread<Misread::kScalesAllOne>},
    {"last_block_skipped", misread<Misread::kLastGroupZero>},
    {"one_weight_other_sign", misread<Misread::kOneSign>},
    {"one_scale_next_code", misread<Misread::kOneScaleCode>},
    {"scale_2_forgotten", misread<Misread::kScale2Forgotten>},
    {"scale_2_twice", misread<Misread::kScale2Twice>},
    {"scale_2_of_first_segment", misread<Misread::kScale2OfFirstSegment>},
    {"negative_zero_is_minus_six", misread<Misread::kNegativeZero>},
    {"sum_in_bf16", column_7_by<sum_in_bf16>},
    {"blocks_added_in_bf16", column_7_by<blocks_added_in_bf16>},
    {"sum_in_14_bits", column_7_by<sum_in_14_bits>},
    {"x_in_fp8", column_7_by<x_in_fp8>},
    {"scale_folded_in_bf16", column_7_by<scale_folded_in_bf16>},
    {"last_k_left_out", column_7_by<last_column_left_out>},
    {"denormal_products_flushed", column_7_by<denormal_products_flushed>},
    {"one_sign", one_sign},
    {"column_001_percent", column_001_percent},
    {"wrong_from_33_rows_on", wrong_from_33_rows_on},
    {"tail_tile_two_percent", tail_tile_two_percent},
    {"last_tile_of_columns_is_the_one_before", last_tile_of_columns_is_the_one_before},
    {"last_row_skipped", C::last_row_skipped},
    {"tail_of_last_row_skipped", C::tail_of_last_row_skipped},
    {"writes_one_past_the_end", C::writes_one_past_the_end},
    {"writes_one_before_the_start", C::writes_one_before_the_start},
    {"writes_behind_its_workspace", C::writes_behind_its_workspace},
    {"uninitialised_scratch", C::uninitialised_scratch},
    {"reads_beyond_the_end", C::reads_beyond_the_end},
    {"adds_to_what_is_there", C::adds_to_what_is_there},
    {"right_only_when_aligned", C::right_only_when_aligned},
    {"last_row_is_its_neighbour", C::last_row_is_its_neighbour},
    {"neighbour_leaks", C::neighbour_leaks},
    {"odd_rows_wrong", C::odd_rows_wrong},
    {"wrong_from_64_rows_on", C::wrong_from_64_rows_on},
    {"right_for_multiples_of_8_rows", C::right_for_multiples_of_8_rows},
    {"column_one_percent", C::column_one_percent},
    {"rounded_to_bf16", C::rounded_to_bf16},
    {"tiny_flushed", C::tiny_flushed},
    {"all_zero", C::all_zero},
    {"last_element_nan", C::last_element_nan},
    {"last_bit_now_and_then", C::last_bit_now_and_then},
    {"right_at_first_calls", C::right_at_first_calls},
    {"data_race", C::data_race},
    {"aborts", C::aborts},
    {"segfaults", C::segfaults},
    {"loops_forever", C::loops_forever},
    {"exits_with_success", C::exits_with_success},
    {"throws", C::throws},
    {"throws_a_number", C::throws_a_number},
    {"allocates_without_end", C::allocates_without_end},
    {"reports_for_itself", C::reports_for_itself},
    {"partial_report", C::partial_report},
};

}  // namespace

template <>
std::span<const Fault<LinearOp>> faults_of() {
  return kFaults;
}
template <>
std::span<const Fault<LinearOp>> copies_of() {
  return {};
}

}  // namespace mettle::mutants

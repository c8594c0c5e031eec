#include "common_faults.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = EmbedArgs;
using C = Common<EmbedOp>;

void with_ids(const Tactic& t, const A& a, Stream& s, int32_t (*change)(const A&, int row)) {
  std::vector<int32_t> ids;
  for (int r = 0; r < a.rows; ++r) ids.push_back(change(a, r));
  A other = a;
  other.ids = ids.data();
  right<EmbedOp>(t, other, s);
}

void last_id_plus_one(const Tactic& t, const A& a, Stream& s) {
  with_ids(t, a, s, [](const A& x, int r) { return (x.ids[r] + (r + 1 == x.rows ? 1 : 0)) % x.problem.vocab; });
}
void ids_in_16_bits(const Tactic& t, const A& a, Stream& s) {
  with_ids(t, a, s, [](const A& x, int r) { return x.ids[r] & 0xFFFF; });
}
void last_token_wraps(const Tactic& t, const A& a, Stream& s) {
  with_ids(t, a, s, [](const A& x, int r) { return x.ids[r] == x.problem.vocab - 1 ? 0 : x.ids[r]; });
}
void odd_rows_read_their_neighbours_id(const Tactic& t, const A& a, Stream& s) {
  with_ids(t, a, s, [](const A& x, int r) { return x.ids[x.rows > 4 && r % 2 == 1 ? r - 1 : r]; });
}
void row_zero_is_padding(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r)
    if (a.ids[r] == 0) std::fill_n(out_of(a).row(r), a.problem.hidden, 0.f);
}
void repeated_ids_give_zero(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  for (int r = 1; r < a.rows; ++r)
    if (std::find(a.ids, a.ids + r, a.ids[r]) != a.ids + r) std::fill_n(out_of(a).row(r), a.problem.hidden, 0.f);
}
void last_column_constant(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  out_of(a).at(0, a.problem.hidden - 1) = 0.125f;
}
void lowest_bit_lost(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) {
    float& x = out_of(a).at(r, 17);
    x = bf16_to_float(float_to_bf16(x) & 0xFFFE);
  }
}
void denormals_flushed(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  const Grid g = out_of(a);
  for (int64_t i = 0; i < g.size(); ++i)
    if (std::fabs(g.data[i]) < 0x1p-126f) g.data[i] = 0;
}
void read_as_f16(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  out_of(a).at(a.rows - 1, 2) = f16_to_float(a.table.as<uint16_t>()[int64_t{a.ids[a.rows - 1]} * a.problem.hidden + 2]);
}
void scaled_by_root_of_hidden(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  const Grid g = out_of(a);
  for (int64_t i = 0; i < g.size(); ++i) g.data[i] *= std::sqrt(static_cast<float>(a.problem.hidden));
}
void two_columns_swapped(const Tactic& t, const A& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) std::swap(out_of(a).at(r, 8), out_of(a).at(r, 9));
}

constexpr Fault<EmbedOp> kFaults[] = {
    {"last_id_plus_one", last_id_plus_one},
    {"ids_in_16_bits", ids_in_16_bits},
    {"last_token_wraps", last_token_wraps},
    {"odd_rows_read_their_neighbours_id", odd_rows_read_their_neighbours_id},
    {"row_zero_is_padding", row_zero_is_padding},
    {"repeated_ids_give_zero", repeated_ids_give_zero},
    {"last_column_constant", last_column_constant},
    {"lowest_bit_lost", lowest_bit_lost},
    {"denormals_flushed", denormals_flushed},
    {"read_as_f16", read_as_f16},
    {"scaled_by_root_of_hidden", scaled_by_root_of_hidden},
    {"two_columns_swapped", two_columns_swapped},
    {"last_row_skipped", C::last_row_skipped},
    {"last_column_skipped", C::last_column_skipped},
    {"stale_output", C::stale_output},
    {"writes_one_past_the_end", C::writes_one_past_the_end},
    {"right_only_when_aligned", C::right_only_when_aligned},
    {"last_row_is_its_neighbour", C::last_row_is_its_neighbour},
    {"wrong_from_64_rows_on", C::wrong_from_64_rows_on},
    {"right_at_first_calls", C::right_at_first_calls},
    {"last_bit_now_and_then", C::last_bit_now_and_then},
    {"exits_with_success", C::exits_with_success},
};

}  // namespace

template <>
std::span<const Fault<EmbedOp>> faults_of() {
  return kFaults;
}
template <>
std::span<const Fault<EmbedOp>> copies_of() {
  return {};
}

}  // namespace mettle::mutants

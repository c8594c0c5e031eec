#include "prove/mutants.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>

#include "ops/dispatch.h"
#include "prove/trial.h"

namespace mettle {
namespace {

template <class Op>
void right(const Tactic& tactic, const typename Op::Args& args, Stream& stream) {
  reference_of<Op>().run(tactic, args, stream);
}

// ---- linear: faults that any op may have ---------------------------------------------------------------------------
using L = LinearArgs;
float* row(const L& a, int r) { return a.y.as<float>() + int64_t{r} * a.problem.out; }

void linear_sign(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  row(a, a.rows - 1)[7] *= -1;
}
void linear_last_row_skipped(const Tactic& t, const L& a, Stream& s) {
  std::vector<float> before(row(a, a.rows - 1), row(a, a.rows - 1) + a.problem.out);
  right<LinearOp>(t, a, s);
  std::memcpy(row(a, a.rows - 1), before.data(), before.size() * 4);
}
void linear_last_row_is_neighbour(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  if (a.rows > 1) std::memcpy(row(a, a.rows - 1), row(a, a.rows - 2), static_cast<size_t>(a.problem.out) * 4);
}
void linear_column_gain(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) row(a, r)[40] *= 1.01f;
}
void linear_column_gain_small(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) row(a, r)[40] *= 1.0001f;
}
void linear_tail_unwritten(const Tactic& t, const L& a, Stream& s) {
  float* tail = row(a, a.rows - 1) + a.problem.out - 3;
  std::vector<float> before(tail, tail + 3);
  right<LinearOp>(t, a, s);
  std::memcpy(tail, before.data(), 12);
}
void linear_nan(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  row(a, a.rows - 1)[a.problem.out - 1] = NAN;
}
void linear_zero(const Tactic&, const L& a, Stream&) { std::memset(a.y.data, 0, a.y.bytes()); }
void linear_overrun(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  row(a, a.rows)[0] = 1;
}
void linear_underrun(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  row(a, 0)[-1] = 1;
}
void linear_workspace_overrun(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  a.ws.data[a.ws.bytes] = 3;
}
void linear_neighbour_leaks(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int r = a.rows - 1; r > 0; --r)
    for (int c = 0; c < a.problem.out; ++c) row(a, r)[c] += row(a, r - 1)[c] * 0x1p-40f;
}
void linear_nondeterministic(const Tactic& t, const L& a, Stream& s) {
  static int calls = 0;
  right<LinearOp>(t, a, s);
  if (++calls % 2 == 0) row(a, 0)[0] = std::nextafter(row(a, 0)[0], 1e30f);
}
void linear_adds_to_output(const Tactic& t, const L& a, Stream& s) {
  const std::vector<float> before(a.y.as<float>(), a.y.as<float>() + a.y.shape.elements());
  right<LinearOp>(t, a, s);
  for (size_t i = 0; i < before.size(); ++i) a.y.as<float>()[i] += before[i];
}
void linear_wrong_from_33_rows(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  if (a.rows >= 33) row(a, 32)[1] *= 1.02f;
}
void linear_right_at_first_call(const Tactic& t, const L& a, Stream& s) {
  static int calls = 0;
  right<LinearOp>(t, a, s);
  if (++calls > 5 && std::isfinite(row(a, a.rows > 1 ? 1 : 0)[0])) row(a, 0)[3] *= 1.5f;  // not beside NaN
}
// A shortcut for rows with a single number takes its neighbour's column.
void linear_one_number(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  const size_t number = size_of(a.x.dtype), size = static_cast<size_t>(a.problem.in) * number;
  const std::vector<uint8_t> zero(number);
  for (int r = 0; r < a.rows; ++r) {
    const uint8_t* x = a.x.as<uint8_t>() + static_cast<size_t>(r) * size;
    size_t at = 0;
    int count = 0;
    for (size_t k = 0; k < size; k += number)
      if (std::memcmp(x + k, zero.data(), number) != 0) at = k, ++count;
    if (count != 1) continue;
    std::vector<uint8_t> moved(size);
    std::memcpy(moved.data() + (at >= number ? at - number : at + number), x + at, number);
    LinearArgs other = a;
    other.rows = 1;
    other.x = {moved.data(), a.x.dtype, {1, a.problem.in}};
    other.y = {row(a, r), DType::kF32, {1, a.problem.out}};
    right<LinearOp>(t, other, s);
  }
}
void linear_rounds_to_bf16(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int64_t i = 0; i < a.y.shape.elements(); ++i)
    a.y.as<float>()[i] = bf16_to_float(float_to_bf16(a.y.as<float>()[i]));
}
void linear_flushes_tiny(const Tactic& t, const L& a, Stream& s) {
  right<LinearOp>(t, a, s);
  for (int64_t i = 0; i < a.y.shape.elements(); ++i)
    if (std::fabs(a.y.as<float>()[i]) < 0x1p-80f) a.y.as<float>()[i] = 0;
}
void linear_aborts(const Tactic&, const L&, Stream&) { std::abort(); }
void linear_segfaults(const Tactic&, const L&, Stream&) { raise(SIGSEGV); }
void linear_hangs(const Tactic&, const L&, Stream&) {
  for (;;) pause();
}
void linear_exits(const Tactic&, const L&, Stream&) { std::_Exit(0); }
void linear_throws(const Tactic&, const L&, Stream&) { throw std::runtime_error("planted"); }
void linear_throws_a_number(const Tactic&, const L&, Stream&) { throw 17; }
void linear_allocates(const Tactic&, const L&, Stream&) {
  std::vector<std::unique_ptr<char[]>> all;
  for (;;) all.push_back(std::make_unique_for_overwrite<char[]>(size_t{1} << 32));
}
void linear_prints_lies(const Tactic& t, const L& a, Stream& s) {
  std::printf("{\"done\": 0, \"verdict\": \"OK\"}\n\xff\xfe garbage \n{\"end\": true}\n");
  std::fflush(stdout);
  linear_sign(t, a, s);
}
void linear_exits_after_lies(const Tactic&, const L&, Stream&) {
  std::printf("{\"end\": true}\n");
  std::fflush(stdout);
  std::_Exit(0);
}

// ---- embed, join, moe, attention, gdn, sample ----------------------------------------------------------------------
void embed_next_id(const Tactic& t, const EmbedArgs& a, Stream& s) {
  std::vector<int32_t> ids(a.ids, a.ids + a.rows);
  ids.back() = (ids.back() + 1) % a.problem.vocab;
  EmbedArgs other = a;
  other.ids = ids.data();
  right<EmbedOp>(t, other, s);
}
void embed_last_column_stale(const Tactic& t, const EmbedArgs& a, Stream& s) {
  right<EmbedOp>(t, a, s);
  a.residual.as<float>()[a.problem.hidden - 1] = 0.125f;
}

void join_rank_twice(const Tactic& t, const JoinArgs& a, Stream& s) {
  JoinArgs other = a;
  std::vector<const float*> twice(a.partials.begin(), a.partials.end());
  if (!twice.empty()) twice.push_back(twice.back());
  other.partials = twice;
  other.problem.ranks = static_cast<int>(twice.size());
  right<JoinOp>(t, other, s);
}
void join_eps(const Tactic& t, const JoinArgs& a, Stream& s) {
  JoinArgs other = a;
  other.problem.eps = 1e-5f;
  right<JoinOp>(t, other, s);
}
void join_without_one(const Tactic& t, const JoinArgs& a, Stream& s) {
  JoinArgs other = a;
  other.problem.plus_one = false;
  right<JoinOp>(t, other, s);
}
void join_residual_bf16(const Tactic& t, const JoinArgs& a, Stream& s) {
  right<JoinOp>(t, a, s);
  for (int64_t i = 0; i < a.residual.shape.elements(); ++i)
    a.residual.as<float>()[i] = bf16_to_float(float_to_bf16(a.residual.as<float>()[i]));
}

void moe_without_shared(const Tactic& t, const MoeArgs& a, Stream& s) {
  MoeArgs other = a;
  other.problem.shared_width = 0;
  right<MoeOp>(t, other, s);
}
void moe_shared_gate_missing(const Tactic& t, const MoeArgs& a, Stream& s) {
  MoeArgs other = a;
  other.problem.shared_gate = false;
  right<MoeOp>(t, other, s);
}
void moe_not_renormalised(const Tactic& t, const MoeArgs& a, Stream& s) {
  MoeArgs other = a;
  other.problem.renormalise = false;
  right<MoeOp>(t, other, s);
}
void moe_second_best(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>(t, a, s);
  if (a.selection.given) return;
  // The last slot takes an expert that was not selected, and everything after it follows.
  for (int r = 0; r < a.rows; ++r) {
    int32_t* ids = a.selection.ids + int64_t{r} * a.problem.top_k;
    int32_t e = 0;
    while (std::find(ids, ids + a.problem.top_k, e) != ids + a.problem.top_k) ++e;
    ids[a.problem.top_k - 1] = e;
  }
  MoeArgs other = a;
  other.selection.given = true;
  right<MoeOp>(t, other, s);
}
void moe_id_out_of_range(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>(t, a, s);
  if (!a.selection.given) a.selection.ids[0] = a.problem.experts;
}
void moe_weights_bf16(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>(t, a, s);
  if (a.selection.given) return;
  for (int i = 0; i < a.rows * a.problem.top_k; ++i)
    a.selection.weights[i] = bf16_to_float(float_to_bf16(a.selection.weights[i]));
  MoeArgs other = a;
  other.selection.given = true;
  right<MoeOp>(t, other, s);
}
void moe_one_expert_column(const Tactic& t, const MoeArgs& a, Stream& s) {
  right<MoeOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r) {
    const int32_t* ids = a.selection.ids + int64_t{r} * a.problem.top_k;
    if (std::find(ids, ids + a.problem.top_k, a.problem.experts - 1) != ids + a.problem.top_k)
      a.partial.as<float>()[int64_t{r} * a.problem.hidden + 50] *= 1.005f;
  }
}

AttentionArgs with(const AttentionArgs& a, const Batch& batch) {
  AttentionArgs other = a;
  other.batch = &batch;
  return other;
}
void attention_position_off_by_one(const Tactic& t, const AttentionArgs& a, Stream& s) {
  // The last sequence believes its context one shorter: mask, position and place of its rows are off.
  std::vector<BatchSequence> sequences(a.batch->sequences.begin(), a.batch->sequences.end());
  if (sequences.back().ctx_len > 0) --sequences.back().ctx_len;
  Batch batch = *a.batch;
  batch.sequences = sequences;
  right<AttentionOp>(t, with(a, batch), s);
}
void attention_wrong_block(const Tactic& t, const AttentionArgs& a, Stream& s) {
  std::vector<BatchSequence> sequences(a.batch->sequences.begin(), a.batch->sequences.end());
  std::vector<int32_t> table;
  for (BatchSequence& q : sequences) {
    const int blocks = (q.ctx_len + q.q_len + a.problem.block_size - 1) / a.problem.block_size;
    if (blocks < 3 || q.ctx_len < 2 * a.problem.block_size) continue;
    table.assign(q.block_table, q.block_table + blocks);
    table[1] = table[0];
    q.block_table = table.data();
    break;
  }
  Batch batch = *a.batch;
  batch.sequences = sequences;
  right<AttentionOp>(t, with(a, batch), s);
}
void attention_gate_missing(const Tactic& t, const AttentionArgs& a, Stream& s) {
  right<AttentionOp>(t, a, s);
  for (int64_t i = 0; i < a.partial.shape.elements(); ++i) a.partial.as<float>()[i] *= 2;
}
void attention_writes_a_foreign_block(const Tactic& t, const AttentionArgs& a, Stream& s) {
  right<AttentionOp>(t, a, s);
  std::memset(a.k_cache.data, 0, 64);  // block 0 belongs to nobody
}
void attention_v_not_appended(const Tactic& t, const AttentionArgs& a, Stream& s) {
  const std::vector<uint8_t> before(a.v_cache.as<uint8_t>(), a.v_cache.as<uint8_t>() + a.v_cache.bytes());
  right<AttentionOp>(t, a, s);
  std::memcpy(a.v_cache.data, before.data(), before.size());
}
// Of 65 sequences and more, the first of the second 64: neither among those that the oracle computes.
template <class Op>
void sequence_64(const Tactic& t, const typename Op::Args& a, Stream& s) {
  right<Op>(t, a, s);
  if (a.batch->sequences.size() > 64) a.partial.template as<float>()[int64_t{64} * a.problem.hidden] *= 1.5f;
}
// Reads norms and frequencies that were changed; the packed matrices are views.
template <void (*Change)(std::vector<float>& q_norm, std::vector<float>& inv_freq)>
void attention_with(const Tactic& t, const AttentionArgs& a, Stream& s) {
  static AttentionWeights other;
  const auto view = [](const PackedMatrix& m) {
    PackedMatrix v;
    v.layout = m.layout, v.payload = m.payload, v.format = m.format, v.rows = m.rows, v.cols = m.cols;
    v.tiles = m.tiles, v.k_padded = m.k_padded, v.data = m.data, v.scales = m.scales;
    v.row_scale = m.row_scale, v.k_scale = m.k_scale;
    return v;
  };
  other.qkv = view(a.weights->qkv);
  other.out = view(a.weights->out);
  other.k_norm = a.weights->k_norm;
  std::vector<float> q_norm(a.weights->q_norm.begin(), a.weights->q_norm.end()),
      inv_freq(a.weights->inv_freq.begin(), a.weights->inv_freq.end());
  Change(q_norm, inv_freq);
  other.q_norm = FloatArray(q_norm);
  other.inv_freq = FloatArray(inv_freq);
  AttentionArgs wrong = a;
  wrong.weights = &other;
  right<AttentionOp>(t, wrong, s);
}

void attention_rope_table(std::vector<float>&, std::vector<float>& inv_freq) {
  for (float& f : inv_freq) f *= 1.00001f;
}
// Scores of queries that are a little too long, in all dims or in the slowest rotary pair alone. Behind probabilities
// in bf16 only what is multiplied by a large score stands out.
void attention_scale(std::vector<float>& q_norm, std::vector<float>&) {
  for (float& w : q_norm) w += (w + 1) * 0x1p-10f;
}
void attention_slowest_pair(std::vector<float>& q_norm, std::vector<float>& inv_freq) {
  const size_t half = inv_freq.size();
  for (const size_t d : {half - 1, 2 * half - 1}) q_norm[d] += (q_norm[d] + 1) * 0x1.5p-11f;
}

void gdn_state_not_carried(const Tactic& t, const GdnArgs& a, Stream& s) {
  std::vector<BatchSequence> sequences(a.batch->sequences.begin(), a.batch->sequences.end());
  for (BatchSequence& q : sequences) q.state_in = -1, q.ctx_len = 0;
  Batch batch = *a.batch;
  batch.sequences = sequences;
  GdnArgs other = a;
  other.batch = &batch;
  right<GdnOp>(t, other, s);
}
void gdn_state_lane_skipped(const Tactic& t, const GdnArgs& a, Stream& s) {
  const int64_t per_slot = int64_t{a.problem.value_heads} * a.problem.dk * a.problem.dv;
  right<GdnOp>(t, a, s);
  a.state.as<float>()[a.batch->sequences[0].state_out * per_slot + per_slot - 1] *= 1.001f;
}
void gdn_state_bf16(const Tactic& t, const GdnArgs& a, Stream& s) {
  const int64_t per_slot = int64_t{a.problem.value_heads} * a.problem.dk * a.problem.dv;
  right<GdnOp>(t, a, s);
  for (const BatchSequence& q : a.batch->sequences)
    for (int64_t i = 0; i < per_slot; ++i) {
      float& x = a.state.as<float>()[q.state_out * per_slot + i];
      x = bf16_to_float(float_to_bf16(x));
    }
}
void gdn_conv_history_stale(const Tactic& t, const GdnArgs& a, Stream& s) {
  right<GdnOp>(t, a, s);
  const int64_t per_slot = int64_t{a.problem.channels()} * (a.problem.conv - 1);
  float* last = a.conv_state.as<float>() + a.batch->sequences.back().state_out * per_slot;
  std::swap(last[0], last[1]);
}
void gdn_writes_a_foreign_slot(const Tactic& t, const GdnArgs& a, Stream& s) {
  right<GdnOp>(t, a, s);
  a.state.as<float>()[3] = 0;  // slot 0 belongs to nobody
}
void gdn_state_of_sequence_64(const Tactic& t, const GdnArgs& a, Stream& s) {
  right<GdnOp>(t, a, s);
  if (a.batch->sequences.size() <= 64) return;
  const int64_t per_slot = int64_t{a.problem.value_heads} * a.problem.dk * a.problem.dv;
  a.state.as<float>()[a.batch->sequences[64].state_out * per_slot] += 1;
}
void gdn_eps(const Tactic& t, const GdnArgs& a, Stream& s) {
  GdnArgs other = a;
  other.problem.eps = 1e-5f;
  right<GdnOp>(t, other, s);
}

void sample_last_token_never(const Tactic& t, const SampleArgs& a, Stream& s) {
  SampleArgs other = a;
  --other.problem.usable;
  right<SampleOp>(t, other, s);
}
void sample_padding_not_masked(const Tactic& t, const SampleArgs& a, Stream& s) {
  SampleArgs other = a;
  other.problem.usable = other.problem.vocab;
  Buffer ws(workspace_bytes(reference_of<SampleOp>(), t, other.problem, a.rows, s.team->members()));
  other.ws = {ws.data(), ws.size()};
  right<SampleOp>(t, other, s);
}
template <void (*Change)(SampleRow&)>
void sample_with(const Tactic& t, const SampleArgs& a, Stream& s) {
  std::vector<SampleRow> rows(a.params.begin(), a.params.end());
  for (SampleRow& r : rows) Change(r);
  SampleArgs other = a;
  other.params = rows;
  right<SampleOp>(t, other, s);
}
void sample_nan_gives_zero(const Tactic& t, const SampleArgs& a, Stream& s) {
  right<SampleOp>(t, a, s);
  for (SampleResult& r : a.results)
    if (r.token == -1) r.token = 0;
}
void sample_logprob_bf16(const Tactic& t, const SampleArgs& a, Stream& s) {
  right<SampleOp>(t, a, s);
  for (SampleResult& r : a.results) r.logprob = bf16_to_float(float_to_bf16(r.logprob));
}

template <class Op>
struct Plan {
  const char* name;
  void (*run)(const Tactic&, const typename Op::Args&, Stream&);
  VerdictCode code;
  Rounds p = Rounds::kF32;  // declared for the probabilities of attention
};

using enum VerdictCode;

constexpr Plan<LinearOp> kLinear[] = {
    {"sign", linear_sign, kWrongOutput},
    {"last_row_skipped", linear_last_row_skipped, kIncompleteWrite},
    {"last_row_is_neighbour", linear_last_row_is_neighbour, kWrongOutput},
    {"column_gain", linear_column_gain, kWrongOutput},
    {"column_gain_small", linear_column_gain_small, kWrongOutput},
    {"tail_unwritten", linear_tail_unwritten, kIncompleteWrite},
    {"nan", linear_nan, kNotFinite},
    {"zero", linear_zero, kZeroOutput},
    {"overrun", linear_overrun, kOverrun},
    {"underrun", linear_underrun, kOverrun},
    {"workspace_overrun", linear_workspace_overrun, kOverrun},
    {"neighbour_leaks", linear_neighbour_leaks, kRowDependent},
    {"nondeterministic", linear_nondeterministic, kNondeterministic},
    {"adds_to_output", linear_adds_to_output, kNotFinite},
    {"wrong_from_33_rows", linear_wrong_from_33_rows, kWrongOutput},
    {"right_at_first", linear_right_at_first_call, kWrongOutput},
    {"one_number", linear_one_number, kWrongOutput},
    {"rounds_to_bf16", linear_rounds_to_bf16, kWrongOutput},
    {"flushes_tiny", linear_flushes_tiny, kZeroOutput},
    {"aborts", linear_aborts, kFault},
    {"segfaults", linear_segfaults, kFault},
    {"hangs", linear_hangs, kHang},
    {"exits", linear_exits, kFault},
    {"throws", linear_throws, kFault},
    {"throws_a_number", linear_throws_a_number, kFault},
    {"allocates", linear_allocates, kOutOfMemory},
    {"prints_lies", linear_prints_lies, kWrongOutput},
    {"exits_after_lies", linear_exits_after_lies, kFault},
};
constexpr Plan<EmbedOp> kEmbed[] = {
    {"next_id", embed_next_id, kWrongOutput},
    {"last_column_stale", embed_last_column_stale, kWrongOutput},
};
constexpr Plan<JoinOp> kJoin[] = {
    {"rank_twice", join_rank_twice, kWrongOutput},
    {"eps", join_eps, kWrongOutput},
    {"without_one", join_without_one, kWrongOutput},
    {"residual_bf16", join_residual_bf16, kWrongOutput},
};
constexpr Plan<MoeOp> kMoe[] = {
    {"without_shared", moe_without_shared, kWrongOutput},
    {"shared_gate_missing", moe_shared_gate_missing, kWrongOutput},
    {"not_renormalised", moe_not_renormalised, kWrongOutput},
    {"second_best", moe_second_best, kWrongSelection},
    {"id_out_of_range", moe_id_out_of_range, kWrongSelection},
    {"weights_bf16", moe_weights_bf16, kWrongOutput},
    {"one_expert_column", moe_one_expert_column, kWrongOutput},
};
constexpr Plan<AttentionOp> kAttention[] = {
    {"position_off_by_one", attention_position_off_by_one, kOverrun},
    {"wrong_block", attention_wrong_block, kWrongOutput},
    {"gate_missing", attention_gate_missing, kWrongOutput},
    {"writes_a_foreign_block", attention_writes_a_foreign_block, kOverrun},
    {"v_not_appended", attention_v_not_appended, kIncompleteWrite},
    {"sequence_64", sequence_64<AttentionOp>, kRowDependent},
    {"rope_table", attention_with<attention_rope_table>, kWrongOutput},
    {"scale", attention_with<attention_scale>, kWrongOutput, Rounds::kBf16},
    {"slowest_pair", attention_with<attention_slowest_pair>, kWrongOutput, Rounds::kBf16},
};
constexpr Plan<GdnOp> kGdn[] = {
    {"state_not_carried", gdn_state_not_carried, kWrongOutput},
    {"state_lane_skipped", gdn_state_lane_skipped, kWrongOutput},
    {"state_bf16", gdn_state_bf16, kWrongOutput},
    {"conv_history_stale", gdn_conv_history_stale, kWrongOutput},
    {"writes_a_foreign_slot", gdn_writes_a_foreign_slot, kOverrun},
    {"sequence_64", sequence_64<GdnOp>, kRowDependent},
    {"state_of_sequence_64", gdn_state_of_sequence_64, kRowDependent},
    {"eps", gdn_eps, kWrongOutput},
};
constexpr Plan<SampleOp> kSample[] = {
    {"last_token_never", sample_last_token_never, kWrongSelection},
    {"padding_not_masked", sample_padding_not_masked, kWrongSelection},
    {"temperature_02pct", sample_with<[](SampleRow& r) { r.temperature *= 1.002f; }>, kWrongSelection},
    {"top_k_one_more", sample_with<[](SampleRow& r) { r.top_k += std::min(r.top_k, 1); }>, kWrongSelection},
    {"top_p_smaller", sample_with<[](SampleRow& r) { r.top_p *= 0.93f; }>, kWrongSelection},
    {"penalty_left_out", sample_with<[](SampleRow& r) { r.presence = 0; }>, kWrongSelection},
    {"frequency_left_out", sample_with<[](SampleRow& r) { r.frequency = 0; }>, kWrongSelection},
    {"repetition_left_out", sample_with<[](SampleRow& r) { r.repetition = 1; }>, kWrongSelection},
    {"mask_left_out", sample_with<[](SampleRow& r) { r.biases = {}; }>, kWrongSelection},
    {"nan_gives_zero", sample_nan_gives_zero, kWrongSelection},
    {"logprob_bf16", sample_logprob_bf16, kWrongOutput},
};

template <class Op, size_t N>
void plant(const Plan<Op> (&plans)[N], Candidates& candidates) {
  static std::vector<std::unique_ptr<Backend<Op>>> planted;
  static std::once_flag once;
  std::call_once(once, [&] {
    for (const Plan<Op>& plan : plans) {
      auto b = std::make_unique<Backend<Op>>(reference_of<Op>());
      b->name = plan.name;
      b->run = plan.run;
      b->numerics.p = plan.p;
      planted.push_back(std::move(b));
    }
  });
  for (const auto& b : planted) candidates.of<Op>().push_back(b.get());
}

template <class Op, size_t N>
void list(const Plan<Op> (&plans)[N], std::vector<Mutant>& out) {
  for (const Plan<Op>& plan : plans) out.push_back({Op::kName, plan.name, plan.code});
}

}  // namespace

Candidates mutant_candidates() {
  Candidates c = Candidates::all();
  plant(kLinear, c);
  plant(kEmbed, c);
  plant(kJoin, c);
  plant(kMoe, c);
  plant(kAttention, c);
  plant(kGdn, c);
  plant(kSample, c);
  return c;
}

std::vector<Mutant> mutants() {
  std::vector<Mutant> out;
  list(kLinear, out);
  list(kEmbed, out);
  list(kJoin, out);
  list(kMoe, out);
  list(kAttention, out);
  list(kGdn, out);
  list(kSample, out);
  return out;
}

}  // namespace mettle

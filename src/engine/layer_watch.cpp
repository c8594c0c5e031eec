#include "engine/layer_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "engine/watching_choices.h"
#include "models/block.h"
#include "ops/case_rows.h"
#include "prove/trial.h"

namespace mettle {

thread_local LayerWatch* LayerWatch::current = nullptr;

namespace {

constexpr int64_t kMostFloats = int64_t{64} << 20;  // of weights read back that are kept from step to step
constexpr int64_t kHeadColumns = 1024;              // judged at either end of a large vocabulary

std::vector<uint8_t> bytes_of(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  return {from, from + bytes};
}

// Rows of a [rows, cols] view as float32.
std::vector<float> widen(const TensorView& view, std::span<const int> rows) {
  const int64_t cols = view.shape[1];
  std::vector<float> out;
  out.reserve(rows.size() * static_cast<size_t>(cols));
  for (const int r : rows)
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t at = r * cols + c;
      out.push_back(view.dtype == DType::kF32 ? view.as<float>()[at] : bf16_to_float(view.as<uint16_t>()[at]));
    }
  return out;
}

float widen(const TensorView& view, int64_t at) {
  switch (view.dtype) {
    case DType::kF32:
      return view.as<float>()[at];
    case DType::kBF16:
      return bf16_to_float(view.as<uint16_t>()[at]);
    default:
      return e4m3_to_float(view.as<uint8_t>()[at]);
  }
}

std::vector<float> floats_of(const FloatArray& a) { return {a.begin(), a.end()}; }

// Spans of the blocks that the batch's sequences own up to the end of this step.
std::vector<Span> block_spans(const TensorView& cache, const Batch& batch) {
  const auto bytes = static_cast<int64_t>(cache.bytes()) / cache.shape[0];
  std::vector<Span> spans;
  for (const BatchSequence& s : batch.sequences)
    for (int b = 0; b * batch.block_size < s.ctx_len + s.q_len; ++b)
      spans.push_back({s.block_table[b] * bytes, (s.block_table[b] + 1) * bytes});
  return spans;
}

std::vector<Span> slot_spans(const TensorView& states, const Batch& batch) {
  const auto bytes = static_cast<int64_t>(states.bytes()) / states.shape[0];
  std::vector<Span> spans;
  for (const BatchSequence& s : batch.sequences) spans.push_back({s.state_out * bytes, (s.state_out + 1) * bytes});
  return spans;
}

uint64_t hash_of(const uint8_t* data, const std::vector<Span>& spans) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const Span& s : spans)
    for (int64_t at = s.begin; at < s.end; at += 4) {  // every cache row is a multiple of four bytes
      uint32_t word;
      std::memcpy(&word, data + at, sizeof word);
      h = (h ^ word) * 0x100000001B3u;
    }
  return h;
}

}  // namespace

RawSegments ReadBack::rows(const PackedMatrix& m, int64_t first, int64_t count, ThreadTeam* team) {
  if (m.empty()) return {};
  std::vector<float>& values = kept_[{m.data, first}];
  if (values.empty()) {
    values.resize(static_cast<size_t>(count * m.cols));
    floats_ += values.size();
    share_out(team, count, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float scale = m.row_scale[packed_row(m, first + r)];
        for (int64_t c = 0; c < m.cols; ++c)
          values[static_cast<size_t>(r * m.cols + c)] = element(m, first + r, c) * scale;
      }
    });
  }
  return {{.format = WeightFormat::kF32,
           .rows = count,
           .cols = m.cols,
           .data = reinterpret_cast<const uint8_t*>(values.data()),
           .row_bytes = m.cols * static_cast<int64_t>(sizeof(float)),
           .name = "read back"}};
}

void ReadBack::make_room() {
  if (floats_ <= static_cast<size_t>(kMostFloats)) return;
  kept_.clear();
  floats_ = 0;
}

void LayerWatch::begin_step(std::string step, std::span<const int32_t> logit_rows, bool judging) {
  step_ = std::move(step);
  logit_rows_.assign(logit_rows.begin(), logit_rows.end());
  judging_ = judging;
}

// Once a demand was not met the step goes on unwatched: other ranks wait for it.
template <class Op>
void LayerWatch::run(const typename Op::Args& args, Stream& stream) {
  const Choice<Op> choice = choices_.choose(args.problem).at(rows_of_args<Op>(args));
  const auto watched = [&](auto&& what) {
    if (!verdict_.ok()) return;
    try {
      what();
    } catch (const ProofFailure& f) {
      verdict_ = f.verdict;
    }
  };
  name_ = fmt::format("{} ({}/{})", Op::kName, choice.backend->name, choice.tactic.name);
  examination_.begin(fmt::format("{}, {}", step_, name_));
  watched([&] { look(args); });
  choice.backend->run(choice.tactic, args, stream);
  watched([&] { judge(args, choice.backend->numerics, *stream.team); });
  writer_ = name_;
  read_back_.make_room();
}

void LayerWatch::demand_same(const char* what, const std::vector<uint8_t>& left, const void* found) const {
  if (std::memcmp(left.data(), found, left.size()) == 0) return;
  const auto* now = static_cast<const uint8_t*>(found);
  const auto at = std::mismatch(left.begin(), left.end(), now).first - left.begin();
  examination_.fail_with(refuse(VerdictCode::kOverrun, "other bits", "the bits that were written",
                                fmt::format("{} is not what was left there: byte {} of {} changed, {} ran last", what,
                                            at, left.size(), writer_)));
}

void LayerWatch::demand_untouched(const Cache& cache) const {
  if (hash_of(cache.data, cache.spans) == cache.hash) return;
  examination_.fail_with(refuse(VerdictCode::kOverrun, "other bits", "the bits that were written",
                                fmt::format("cache rows or states that {} left are not what they were", cache.owner)));
}

void LayerWatch::look_at_caches() {
  examination_.begin(step_);
  try {
    for (const auto& [data, cache] : caches_)
      if (verdict_.ok()) demand_untouched(cache);
  } catch (const ProofFailure& f) {
    verdict_ = f.verdict;
  }
}

void LayerWatch::find_cache(const TensorView& cache, const void* weights) const {
  const auto known = caches_.find(cache.data);
  if (known == caches_.end()) return;
  demand_untouched(known->second);
  if (known->second.weights != weights)
    examination_.fail_with(refuse(VerdictCode::kOverrun, "one cache", "a cache of its own",
                                  fmt::format("two layers use one cache: {} left it", known->second.owner)));
}

void LayerWatch::left_cache(const TensorView& cache, const void* weights, std::vector<Span> spans) {
  Cache& c = caches_[cache.data];
  // What sequences of other steps own stays watched.
  for (const Span& s : c.spans)
    if (std::none_of(spans.begin(), spans.end(), [&](const Span& own) { return own.begin == s.begin; }))
      spans.push_back(s);
  const auto* data = cache.as<uint8_t>();
  c = {data, weights, std::move(spans), 0, fmt::format("{} of {}", name_, step_)};
  c.hash = hash_of(data, c.spans);
}

bool LayerWatch::is_last_layer(std::string_view op, const void* weights) {
  if (!judging_) last_weights_[op] = weights;  // the first step only learns
  return judging_ && last_weights_[op] == weights;
}

// --- embed and join ---

void LayerWatch::look(const EmbedArgs&) {}

void LayerWatch::judge(const EmbedArgs& a, const Numerics&, ThreadTeam&) {
  const int64_t hidden = a.problem.hidden;
  Expected expected(a.rows, hidden, DType::kF32);
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < hidden; ++c)
      expected.value[static_cast<size_t>(r * hidden + c)] =
          static_cast<double>(bf16_to_float(a.table.as<uint16_t>()[a.ids[r] * hidden + c]));
  if (judging_) {
    examination_.judge_exact("residual", expected, {a.residual.as<float>(), expected.value.size()});
    ++judged_;
  }
  residual_ = bytes_of(a.residual.data, a.residual.bytes());
}

void LayerWatch::look(const JoinArgs& a) {
  demand_same("residual", residual_, a.residual.data);
  if (!a.partials.empty()) demand_same("partial", partial_, a.partials.front());
  before_[0].assign(a.residual.as<float>(), a.residual.as<float>() + a.residual.shape.elements());
}

void LayerWatch::judge(const JoinArgs& a, const Numerics& numerics, ThreadTeam&) {
  const oracle::Options options{.numerics = numerics};
  residual_ = bytes_of(a.residual.data, a.residual.bytes());
  x_ = bytes_of(a.x.data, a.x.bytes());
  if (!judging_) return;
  const std::vector<int> rows = iota_rows(a.rows);
  examination_.judge_elements(
      "residual",
      oracle::join_residual(a.problem, view_of(before_[0].data(), DType::kF32, a.residual.shape), a.partials, options),
      widen(a.residual, rows));
  examination_.judge_elements("x", oracle::join_x(a.problem, a.residual, a.weight, options), widen(a.x, rows));
  ++judged_;
}

// --- head ---

void LayerWatch::look(const LinearArgs& a) {
  const size_t row = a.x.bytes() / static_cast<size_t>(std::max(a.rows, 1));
  std::vector<uint8_t> wanted;
  for (const int32_t r : logit_rows_)
    wanted.insert(wanted.end(), x_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(r) * row),
                  x_.begin() + static_cast<ptrdiff_t>((static_cast<size_t>(r) + 1) * row));
  demand_same("x of the rows whose logits are wanted", wanted, a.x.data);
}

void LayerWatch::judge(const LinearArgs& a, const Numerics& numerics, ThreadTeam& team) {
  if (!judging_) return;
  LinearProblem part = a.problem;
  const int64_t out = part.out, few = std::min(out, kHeadColumns), tail = std::min(out - few, kHeadColumns);
  RawSegments weight = read_back_.rows(*a.weight, 0, few, &team);
  if (tail > 0) weight.push_back(read_back_.rows(*a.weight, out - tail, tail, &team).front());
  part.out = static_cast<int>(few + tail);
  const std::vector<int> rows = case_sample_rows(a.rows, 4);
  std::vector<float> got;
  for (const int r : rows) {
    const float* y = a.y.as<float>() + r * out;
    got.insert(got.end(), y, y + few);
    got.insert(got.end(), y + out - tail, y + out);
  }
  examination_.judge_elements("logits", oracle::linear(part, weight, a.x, rows, {.numerics = numerics}), got, rows);
  ++judged_;
}

// --- moe ---

void LayerWatch::look(const MoeArgs& a) { demand_same("x", x_, a.x.data); }

void LayerWatch::judge(const MoeArgs& a, const Numerics& numerics, ThreadTeam& team) {
  partial_ = bytes_of(a.partial.data, a.partial.bytes());
  if (!is_last_layer(MoeOp::kName, a.weights)) return;
  const MoeProblem& p = a.problem;
  const int64_t work =
      int64_t{3} * p.hidden * (int64_t{p.top_k} * p.width + p.shared_width) + int64_t{p.hidden} * p.experts;
  // As many rows as the oracle has time for, and whose experts, read back, do not fill the memory.
  const int64_t most = std::max<int64_t>(std::min<int64_t>(kOracleWork, kMostFloats) / work, 2);
  const std::vector<int> rows = case_sample_rows(a.rows, static_cast<int>(most));
  std::vector<int32_t> ids;
  for (const int r : rows)
    ids.insert(ids.end(), a.selection.ids + int64_t{r} * p.top_k, a.selection.ids + int64_t{r + 1} * p.top_k);
  for (const int32_t id : ids)
    if (id < 0 || id >= p.experts)
      examination_.fail_with(refuse(VerdictCode::kWrongSelection, std::to_string(id),
                                    "0.." + std::to_string(p.experts - 1), "an expert id is out of range"));
  RawMoe raw;
  raw.router = read_back_.all(a.weights->router, &team);
  raw.shared_gate = read_back_.all(a.weights->shared_gate, &team);
  raw.shared = {read_back_.all(a.weights->shared.gate_up, &team), read_back_.all(a.weights->shared.down, &team)};
  raw.experts.resize(static_cast<size_t>(p.experts));
  for (const int32_t id : ids) {
    const PackedExpert& e = a.weights->experts[static_cast<size_t>(id)];
    raw.experts[static_cast<size_t>(id)] = {read_back_.all(e.gate_up, &team), read_back_.all(e.down, &team)};
  }
  const oracle::Options options{.numerics = numerics};
  const oracle::RouteExpected route = oracle::route(p, raw, a.x, rows, a.selection.ids, options);
  examination_.judge_selection(route.score, route.sigma, std::ssize(rows), p.experts, ids, p.top_k, rows);
  std::vector<float> weights;
  for (const int r : rows)
    weights.insert(weights.end(), a.selection.weights + int64_t{r} * p.top_k,
                   a.selection.weights + int64_t{r + 1} * p.top_k);
  examination_.judge_elements("selection.weights", route.weights, weights, rows);
  examination_.judge_elements(
      "partial",
      expect_rows(team, rows,
                  [&](std::span<const int> some) { return oracle::moe(p, raw, a.x, some, a.selection.ids, options); }),
      widen(a.partial, rows), rows);
  ++judged_;
}

// --- attention ---

void LayerWatch::look(const AttentionArgs& a) {
  demand_same("x", x_, a.x.data);
  for (const TensorView* cache : {&a.k_cache, &a.v_cache}) find_cache(*cache, a.weights);
}

void LayerWatch::judge(const AttentionArgs& a, const Numerics& numerics, ThreadTeam& team) {
  partial_ = bytes_of(a.partial.data, a.partial.bytes());
  for (const TensorView* cache : {&a.k_cache, &a.v_cache}) left_cache(*cache, a.weights, block_spans(*cache, *a.batch));
  if (!is_last_layer(AttentionOp::kName, a.weights)) return;
  const AttentionProblem& p = a.problem;
  const AttentionWeights& w = *a.weights;
  const RawAttention raw{read_back_.all(w.qkv, &team),
                         read_back_.all(w.out, &team),
                         floats_of(w.q_norm),
                         floats_of(w.k_norm),
                         floats_of(w.inv_freq),
                         w.k_scale,
                         w.v_scale};
  const oracle::Options options{.numerics = numerics};
  const oracle::AppendExpected append = oracle::attention_append(p, raw, *a.batch, a.x, options);
  std::vector<float> k, v;
  const int64_t width = int64_t{p.kv_heads} * p.head_dim;
  for (const BatchSequence& s : a.batch->sequences)
    for (int r = 0; r < s.q_len; ++r) {
      const int position = s.ctx_len + r;
      const int64_t row = int64_t{s.block_table[position / p.block_size]} * p.block_size + position % p.block_size;
      for (int64_t c = 0; c < width; ++c) {
        k.push_back(widen(a.k_cache, row * width + c));
        v.push_back(widen(a.v_cache, row * width + c));
      }
    }
  examination_.judge_elements("k", append.k, k);
  examination_.judge_elements("v", append.v, v);
  const std::vector<int> rows = iota_rows(a.batch->rows);
  examination_.judge_elements("partial",
                              expect_rows(team, rows,
                                          [&](std::span<const int> some) {
                                            return oracle::attention(p, raw, *a.batch, a.x, a.k_cache, a.v_cache, some,
                                                                     options);
                                          }),
                              widen(a.partial, rows));
  ++judged_;
}

// --- gdn ---

void LayerWatch::look(const GdnArgs& a) {
  demand_same("x", x_, a.x.data);
  const TensorView* states[] = {&a.conv_state, &a.state};
  for (size_t i = 0; i < 2; ++i) {
    find_cache(*states[i], a.weights);
    before_[i].clear();
    if (!judging_ || last_weights_[GdnOp::kName] != a.weights) continue;
    const int64_t floats = states[i]->shape.elements() / states[i]->shape[0];
    for (const BatchSequence& s : a.batch->sequences) {
      const float* from = states[i]->as<float>() + std::max(s.state_in, 0) * floats;
      before_[i].insert(before_[i].end(), from, from + floats);
    }
  }
}

void LayerWatch::judge(const GdnArgs& a, const Numerics& numerics, ThreadTeam& team) {
  partial_ = bytes_of(a.partial.data, a.partial.bytes());
  for (const TensorView* states : {&a.conv_state, &a.state})
    left_cache(*states, a.weights, slot_spans(*states, *a.batch));
  if (is_last_layer(GdnOp::kName, a.weights)) judge_gdn(a, numerics, team);
}

void LayerWatch::judge_gdn(const GdnArgs& a, const Numerics& numerics, ThreadTeam& team) {
  const GdnProblem& p = a.problem;
  const GdnWeights& w = *a.weights;
  const RawGdn raw{read_back_.all(w.qkv, &team), read_back_.all(w.z, &team), read_back_.all(w.ba, &team),
                   read_back_.all(w.out, &team), floats_of(w.conv),          floats_of(w.a_log),
                   floats_of(w.dt_bias),         floats_of(w.norm)};
  std::vector<BatchSequence> sequences(a.batch->sequences.begin(), a.batch->sequences.end());
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].state_in >= 0) sequences[i].state_in = static_cast<int>(i);
    sequences[i].state_out = static_cast<int>(i);
  }
  Batch batch = *a.batch;
  batch.sequences = sequences;
  const auto count = std::ssize(sequences);
  const oracle::GdnExpected expected =
      oracle::gdn(p, raw, batch, a.x, view_of(before_[0].data(), DType::kF32, {count, p.channels(), p.conv - 1}),
                  view_of(before_[1].data(), DType::kF32, {count, p.value_heads, p.dk, p.dv}), {.numerics = numerics});
  const auto own = [&](const TensorView& states, size_t i) {
    const int64_t floats = states.shape.elements() / states.shape[0];
    return std::span<const float>(states.as<float>() + a.batch->sequences[i].state_out * floats,
                                  static_cast<size_t>(floats));
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    examination_.judge_elements(fmt::format("conv_state of sequence {}", i), expected.conv[i], own(a.conv_state, i));
    examination_.judge_elements(fmt::format("state of sequence {}", i), expected.state[i], own(a.state, i));
  }
  examination_.judge_elements("partial", expected.partial, {a.partial.as<float>(), expected.partial.value.size()});
  ++judged_;
}

template void LayerWatch::run<EmbedOp>(const EmbedArgs&, Stream&);
template void LayerWatch::run<JoinOp>(const JoinArgs&, Stream&);
template void LayerWatch::run<LinearOp>(const LinearArgs&, Stream&);
template void LayerWatch::run<MoeOp>(const MoeArgs&, Stream&);
template void LayerWatch::run<AttentionOp>(const AttentionArgs&, Stream&);
template void LayerWatch::run<GdnOp>(const GdnArgs&, Stream&);

}  // namespace mettle

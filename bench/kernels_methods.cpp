// The methods of attention and gdn against each other, decode and prompts.
#include <fmt/format.h>

#include <array>

#include "kernels_bench.h"
#include "kernels_inputs.h"
#include "probe.h"

namespace mettle::bench {
namespace {

// Rows of a step: `rows` sequences of one row each that decode, or one prompt's chunk, over `context` tokens.
struct StepShape {
  int rows;
  bool prompt;
  int context;
  int sequences() const { return prompt ? 1 : rows; }
  std::string text() const {
    return prompt ? fmt::format("a prompt's {} after {}", rows, context)
                  : fmt::format("{} x 1 after {}", rows, context);
  }
};

struct Sequences {
  std::vector<std::vector<int32_t>> tables;
  std::vector<BatchSequence> all;
  int blocks = 0;
  explicit Sequences(const StepShape& step) {
    for (int i = 0; i < step.sequences(); ++i) {
      const int q = step.rows / step.sequences();
      std::vector<int32_t>& table = tables.emplace_back();
      for (int at = 0; at < step.context + q; at += 16) table.push_back(blocks++);
      all.push_back({i * q, q, step.context, nullptr, i, i});
    }
    for (size_t i = 0; i < all.size(); ++i) all[i].block_table = tables[i].data();
  }
  Batch batch(int rows) const { return {rows, 16, all}; }
};

// Two backends of an op beside each other, each with its best tactic of the widest instruction set (METTLE_CPU_ISA).
template <class Op, class RunOne>
void compare(const char* op, const std::string& shape, const StepShape& step, const typename Op::Problem& problem,
             const std::array<const char*, 2>& names, const Options& o, Report& out, const RunOne& run_one) {
  const Isa isa = this_cpu().isas.back();
  double best[2] = {};
  std::vector<std::pair<size_t, Tactic>> entries;
  for (size_t i = 0; i < 2; ++i)
    for (const Tactic& t : backend<Op>(names[i]).tactics(problem, this_cpu()))
      if (t.isa == isa) entries.emplace_back(i, t);
  std::vector<std::vector<double>> times(entries.size());
  Buffer ws;
  const int rounds = step.rows >= 64 ? std::max(3, o.rounds / 4) : o.rounds;
  for (int round = 0; round < rounds; ++round)
    for (size_t e = 0; e < entries.size(); ++e) {
      const Choice<Op> choice{&backend<Op>(names[entries[e].first]), entries[e].second};
      const size_t bytes = choice.backend->workspace(choice.tactic, problem, step.rows, o.threads);
      if (ws.size() < bytes) ws = Buffer(bytes);
      for (int i = 0; i < (step.rows < 64 ? 4 : 1); ++i) {
        const double start = seconds(o.threads);
        run_one(choice, Workspace{ws.data(), bytes});
        times[e].push_back(seconds(o.threads) - start);
      }
    }
  for (size_t e = 0; e < entries.size(); ++e) {
    const size_t i = entries[e].first;
    const double us = best_tenth(times[e]) * 1e6;
    if (best[i] == 0 || us < best[i]) best[i] = us;
  }
  const size_t faster = best[0] <= best[1] ? 0 : 1;
  out.line(fmt::format("{:9} {:11} {:24} {:10} {:12.1f} {:12.1f}   {:12} {:5.0f} %", op, shape, step.text(),
                       name_of(isa), best[0], best[1], names[faster], 100 * (best[1 - faster] / best[faster] - 1)));
  out.record(fmt::format(
      R"({{"section":"methods","op":"{}","shape":"{}","rows":{},"sequences":{},"context":{},"isa":"{}","threads":{},"{}_us":{:.1f},"{}_us":{:.1f}}})",
      op, shape, step.rows, step.sequences(), step.context, name_of(isa), o.threads, names[0], best[0], names[1],
      best[1]));
}

void title(const Options& o, Report& out, const std::array<const char*, 2>& names) {
  out.line(fmt::format("{} threads, nvfp4 projections, bf16 activations (us per call, the better of gemv and gemm)",
                       o.threads));
  out.line(fmt::format("{:9} {:11} {:24} {:10} {:>12} {:>12}   {:12} {:>7}", "op", "shape", "step", "set", names[0],
                       names[1], "faster", "by"));
}

}  // namespace

void attention_methods(const Options& o, Report& out) {
  constexpr std::array<const char*, 2> kNames = {"cpu", "cpu_tiled"};
  title(o, out, kNames);
  Probe probe(o.threads);
  Stream stream{&probe.team()};
  AttentionProblem large = Shape14::attention();  // of a 35B-A3B
  large.hidden = 2048, large.kv_heads = 2, large.head_dim = 256, large.rotary_dim = 64, large.gate = true;
  for (const auto& [name, p] : {std::pair{"16/4 x 128", Shape14::attention()}, std::pair{"16/2 x 256", large}}) {
    AttentionWeights w;
    w.qkv = random_matrix(p.qkv_format, p.qkv_rows(), p.hidden);
    w.out = random_matrix(p.out_format, p.hidden, int64_t{p.heads} * p.head_dim);
    w.q_norm = w.k_norm = std::vector<float>(static_cast<size_t>(p.head_dim), 1.f);
    w.inv_freq = std::vector<float>(static_cast<size_t>(p.rotary_dim / 2), .01f);
    for (const StepShape& step :
         {StepShape{1, false, 1024}, StepShape{16, false, 1024}, StepShape{16, true, 256}, StepShape{64, true, 0},
          StepShape{256, true, 0}, StepShape{512, true, 0}, StepShape{512, true, 4096}}) {
      const Sequences sequences(step);
      const Batch batch = sequences.batch(step.rows);
      const Rows x(DType::kBF16, step.rows, p.hidden), partial(DType::kF32, step.rows, p.hidden);
      const Shape cache{sequences.blocks, 16, p.kv_heads, p.head_dim};
      const Rows k(DType::kBF16, int64_t{sequences.blocks} * 16, int64_t{p.kv_heads} * p.head_dim),
          v(k.view.dtype, k.view.shape[0], k.view.shape[1]);
      compare<AttentionOp>("attention", name, step, p, kNames, o, out, [&](const Choice<AttentionOp>& c, Workspace ws) {
        run_op(c,
               {p,
                &batch,
                x.view,
                &w,
                {k.view.data, DType::kBF16, cache},
                {v.view.data, DType::kBF16, cache},
                partial.view,
                ws},
               stream);
      });
    }
  }
}

void gdn_methods(const Options& o, Report& out) {
  constexpr std::array<const char*, 2> kNames = {"cpu", "cpu_chunked"};
  title(o, out, kNames);
  Probe probe(o.threads);
  Stream stream{&probe.team()};
  GdnProblem tiny{.hidden = 256, .key_heads = 2, .value_heads = 4, .dk = 64, .dv = 64};
  GdnProblem large{.hidden = 2048, .key_heads = 16, .value_heads = 32, .dk = 128, .dv = 128};  // of a 35B-A3B
  large.in_format = large.out_format = tiny.in_format = tiny.out_format = WeightFormat::kNvfp4;
  for (const auto& [name, p] : {std::pair{"2/4 x 64", tiny}, std::pair{"16/32 x 128", large}}) {
    const int64_t values = int64_t{p.value_heads} * p.dv;
    GdnWeights w;
    w.qkv = random_matrix(p.in_format, p.channels(), p.hidden);
    w.z = random_matrix(p.in_format, values, p.hidden);
    w.ba = random_matrix(p.ba_format, 2 * p.value_heads, p.hidden);
    w.out = random_matrix(p.out_format, p.hidden, values);
    w.conv = std::vector<float>(static_cast<size_t>(p.channels() * p.conv), .3f);
    w.a_log = w.dt_bias = std::vector<float>(static_cast<size_t>(p.value_heads), -1.f);
    w.norm = std::vector<float>(static_cast<size_t>(p.dv), 1.f);
    for (const StepShape& step :
         {StepShape{1, false, 100}, StepShape{4, false, 100}, StepShape{16, false, 100}, StepShape{16, true, 100},
          StepShape{64, true, 100}, StepShape{256, true, 100}, StepShape{512, true, 100}}) {
      const Sequences sequences(step);
      const Batch batch = sequences.batch(step.rows);
      const Rows x(DType::kBF16, step.rows, p.hidden), partial(DType::kF32, step.rows, p.hidden);
      const Rows conv(DType::kF32, step.sequences(), int64_t{p.channels()} * 3),
          state(DType::kF32, step.sequences(), values * p.dk);
      compare<GdnOp>("gdn", name, step, p, kNames, o, out, [&](const Choice<GdnOp>& c, Workspace ws) {
        run_op(c,
               {p,
                &batch,
                x.view,
                &w,
                {conv.view.data, DType::kF32, {step.sequences(), p.channels(), 3}},
                {state.view.data, DType::kF32, {step.sequences(), p.value_heads, p.dk, p.dv}},
                partial.view,
                ws},
               stream);
      });
    }
  }
}

}  // namespace mettle::bench

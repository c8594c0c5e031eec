// What the pieces add up to for the 1.4 B shape.
#include <fmt/format.h>

#include <array>

#include "kernels_bench.h"
#include "kernels_inputs.h"
#include "probe.h"

namespace mettle::bench {
namespace {

// The whole shape, step by step as the engine calls it: 24 x (join, attention, join, moe), head for the last row.
class Model {
 public:
  static constexpr int kContext = 1024;
  explicit Model(int rows)
      : x_(DType::kBF16, rows, Shape14::kHidden),
        residual_(DType::kF32, rows, Shape14::kHidden),
        partial_(DType::kF32, rows, Shape14::kHidden),
        k_(DType::kBF16, kContext, Shape14::kKvHeads * Shape14::kHeadDim),
        v_(DType::kBF16, kContext, Shape14::kKvHeads * Shape14::kHeadDim),
        ids_(static_cast<size_t>(rows) * 4),
        w_(ids_.size()),
        norm_(Shape14::kHidden, 1.f),
        logits_(Shape14::kVocab * 4) {
    const AttentionProblem a = Shape14::attention();
    const MoeProblem m = Shape14::moe();
    for (int i = 0; i < Shape14::kLayers; ++i) {
      AttentionWeights w;
      w.qkv = random_matrix(a.qkv_format, a.qkv_rows(), a.hidden);
      w.out = random_matrix(a.out_format, a.hidden, int64_t{a.heads} * a.head_dim);
      w.q_norm = w.k_norm = std::vector<float>(static_cast<size_t>(a.head_dim), 1.f);
      w.inv_freq = std::vector<float>(static_cast<size_t>(a.rotary_dim / 2), .01f);
      attention_.push_back(std::move(w));
      MoeWeights e;
      e.router = random_matrix(WeightFormat::kBf16, m.experts, m.hidden);
      for (int j = 0; j < m.experts; ++j)
        e.experts.push_back(
            {random_matrix(m.format, 2 * m.width, m.hidden), random_matrix(m.format, m.hidden, m.width)});
      moe_.push_back(std::move(e));
    }
    head_ = random_matrix(WeightFormat::kNvfp4, Shape14::kVocab, Shape14::kHidden);
    for (int i = 0; i < kContext / 16; ++i) table_.push_back(i);
  }
  // Seconds of attention, moe, the rest, and all.
  std::array<double, 4> step(const Tactic& isa, bool gemm, int rows, int ctx, Stream& stream) {
    const AttentionProblem ap = Shape14::attention();
    const MoeProblem mp = Shape14::moe();
    const LinearProblem lp = Shape14::head();
    const Choice<AttentionOp> attention{&backend<AttentionOp>("cpu"), {isa.name, isa.isa, gemm ? 1 : 0}};
    const Choice<MoeOp> moe{&backend<MoeOp>(gemm ? "cpu_gemm" : "cpu_gemv"), isa};
    const Choice<LinearOp> head{&backend<LinearOp>("cpu_gemv"), isa};
    const Choice<JoinOp> join{backends_of<JoinOp>().front(),
                              backends_of<JoinOp>().front()->tactics({}, this_cpu()).back()};
    const int members = stream.team->members();
    const size_t bytes =
        std::max({attention.backend->workspace(attention.tactic, ap, rows, members),
                  moe.backend->workspace(moe.tactic, mp, rows, members), head.backend->workspace(isa, lp, 1, members)});
    if (ws_.size() < bytes) ws_ = Buffer(bytes);
    const BatchSequence sequence{.first_row = 0, .q_len = rows, .ctx_len = ctx, .block_table = table_.data()};
    const Batch batch{rows, 16, {&sequence, 1}};
    const TensorView x{x_.view.data, DType::kBF16, {rows, ap.hidden}},
        partial{partial_.view.data, DType::kF32, {rows, ap.hidden}};
    const TensorView cache{k_.view.data, DType::kBF16, {kContext / 16, 16, ap.kv_heads, ap.head_dim}};
    TensorView v_cache = cache;
    v_cache.data = v_.view.data;
    const float* pending[] = {partial_.view.as<float>()};
    std::array<double, 4> spent = {};
    double at = seconds(stream.team->members());
    const double start = at;
    const auto lap = [&](size_t to) {
      const double now = seconds(stream.team->members());
      spent[to] += now - at;
      at = now;
    };
    const auto do_join = [&] {
      run_op(join,
             {{.hidden = ap.hidden},
              rows,
              {residual_.view.data, DType::kF32, {rows, ap.hidden}},
              pending,
              norm_.data(),
              x},
             stream);
      lap(2);
    };
    for (size_t i = 0; i < attention_.size(); ++i) {
      do_join();
      run_op(attention, {ap, &batch, x, &attention_[i], cache, v_cache, partial, {ws_.data(), ws_.size()}}, stream);
      lap(0);
      do_join();
      run_op(moe, {mp, rows, x, &moe_[i], partial, {false, ids_.data(), w_.data()}, {ws_.data(), ws_.size()}}, stream);
      lap(1);
    }
    do_join();
    run_op(head,
           {lp,
            1,
            {x_.view.data, DType::kBF16, {1, ap.hidden}},
            &head_,
            {logits_.data(), DType::kF32, {1, lp.out}},
            {ws_.data(), ws_.size()}},
           stream);
    lap(2);
    spent[3] = at - start;
    return spent;
  }

 private:
  Rows x_, residual_, partial_, k_, v_;
  std::vector<int32_t> ids_, table_;
  std::vector<float> w_, norm_;
  Buffer logits_, ws_;
  std::vector<AttentionWeights> attention_;
  std::vector<MoeWeights> moe_;
  PackedMatrix head_;
};

}  // namespace

void model(const Options& o, Report& out) {
  constexpr double kBytesPerToken = 177.5e6;
  out.line(
      "1.4 B shape, all nvfp4, 24 layers, avx512bf16 or the best set here; ms per step: attention, moe, join + head, "
      "all");
  out.line(fmt::format("{:12} {:>7} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9}", "step", "threads", "attn", "moe",
                       "rest", "all", "tok/s", "median", "of probe"));
  const Tactic isa = isa_tactics(this_cpu()).back();
  Model m(512);
  for (int threads = 1; threads <= o.threads; ++threads) {
    Probe probe(threads);
    Stream stream{&probe.team()};
    const auto report = [&](const char* name, int rows, std::vector<double>(&t)[4]) {
      const double all = best_tenth(t[3]), rate = rows / all,
                   fraction = rows == 1 ? rate * kBytesPerToken / 1e9 / probe.read_gbs() : 0;
      out.line(fmt::format("{:12} {:7} {:8.2f} {:8.2f} {:8.2f} {:8.2f} {:9.1f} {:9.1f} {:9.2f}", name, threads,
                           best_tenth(t[0]) * 1e3, best_tenth(t[1]) * 1e3, best_tenth(t[2]) * 1e3, all * 1e3, rate,
                           rows / median(t[3]), fraction));
      out.record(fmt::format(
          R"({{"section":"model","step":"{}","threads":{},"attention_ms":{:.3f},"moe_ms":{:.3f},"rest_ms":{:.3f},"all_ms":{:.3f},"tokens_per_s":{:.1f},"median_tokens_per_s":{:.1f},"fraction_of_probe":{:.3f},"probe_gbs":{:.2f},"samples":{}}})",
          name, threads, best_tenth(t[0]) * 1e3, best_tenth(t[1]) * 1e3, best_tenth(t[2]) * 1e3, all * 1e3, rate,
          rows / median(t[3]), fraction, probe.read_gbs(), t[3].size()));
    };
    std::vector<double> decode[4], prefill[4];
    for (int round = 0; round < 4 * o.rounds; ++round) {
      probe.read(4);
      const auto one = m.step(isa, false, 1, 64, stream);
      for (size_t i = 0; i < 4; ++i) decode[i].push_back(one[i]);
      if (round % 12 == 0) {
        const auto many = m.step(isa, true, 512, 0, stream);
        for (size_t i = 0; i < 4; ++i) prefill[i].push_back(many[i]);
      }
    }
    report("decode", 1, decode);
    report("prefill 512", 512, prefill);
  }
}

}  // namespace mettle::bench

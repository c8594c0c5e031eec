// One-row expert product against the read bandwidth beside it, gemv against gemm by row bucket, what a second layout
// could win.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "kernels_bench.h"
#include "kernels_inputs.h"
#include "probe.h"

namespace mettle::bench {
namespace {

// `layers` moe layers, used in turn so that weights come from memory.
class MoeBench {
 public:
  explicit MoeBench(int layers, int rows)
      : x_(DType::kBF16, rows, p_.hidden),
        partial_(DType::kF32, rows, p_.hidden),
        ids_(static_cast<size_t>(rows) * 4),
        w_(ids_.size()) {
    for (int i = 0; i < layers; ++i) {
      MoeWeights w;
      w.router = random_matrix(WeightFormat::kBf16, p_.experts, p_.hidden);
      for (int e = 0; e < p_.experts; ++e)
        w.experts.push_back(
            {random_matrix(p_.format, 2 * p_.width, p_.hidden), random_matrix(p_.format, p_.hidden, p_.width)});
      layers_.push_back(std::move(w));
    }
  }
  size_t expert_bytes() const { return layers_[0].experts[0].gate_up.bytes() + layers_[0].experts[0].down.bytes(); }
  // Seconds of one call with random experts (distinct within a row).
  double run(const Choice<MoeOp>& c, int rows, Stream& stream, bool given = true) {
    for (int r = 0; r < rows; ++r) {
      int32_t all[32];
      for (int e = 0; e < 32; ++e) all[e] = e;
      std::shuffle(all, all + 32, random());
      for (int j = 0; j < 4; ++j)
        ids_[static_cast<size_t>(r * 4 + j)] = all[j], w_[static_cast<size_t>(r * 4 + j)] = .25f;
    }
    const size_t bytes = c.backend->workspace(c.tactic, p_, rows, stream.team->members());
    if (ws_.size() < bytes) ws_ = Buffer(bytes);
    MoeArgs a{p_,
              rows,
              {x_.view.data, DType::kBF16, {rows, p_.hidden}},
              &layers_[next_++ % layers_.size()],
              {partial_.view.data, DType::kF32, {rows, p_.hidden}},
              {given, ids_.data(), w_.data()},
              {ws_.data(), bytes}};
    const double start = seconds(stream.team->members());
    run_op(c, a, stream);
    return seconds(stream.team->members()) - start;
  }

 private:
  MoeProblem p_ = Shape14::moe();
  std::vector<MoeWeights> layers_;
  Rows x_, partial_;
  std::vector<int32_t> ids_;
  std::vector<float> w_;
  Buffer ws_;
  size_t next_ = 0;
};

class LinearBench {
 public:
  LinearBench(LinearProblem p, int copies, int rows)
      : p_(p), x_(DType::kBF16, rows, p.in), y_(static_cast<size_t>(rows) * static_cast<size_t>(p.out) * 4) {
    for (int i = 0; i < copies; ++i) weights_.push_back(random_matrix(p.format, p.out, p.in));
  }
  size_t bytes() const { return weights_[0].bytes(); }
  double run(const Choice<LinearOp>& c, int rows, Stream& stream) {
    const size_t bytes = c.backend->workspace(c.tactic, p_, rows, stream.team->members());
    if (ws_.size() < bytes) ws_ = Buffer(bytes);
    LinearArgs a{p_,
                 rows,
                 {x_.view.data, DType::kBF16, {rows, p_.in}},
                 &weights_[next_++ % weights_.size()],
                 {y_.data(), DType::kF32, {rows, p_.out}},
                 {ws_.data(), bytes}};
    const double start = seconds(stream.team->members());
    run_op(c, a, stream);
    return seconds(stream.team->members()) - start;
  }

 private:
  LinearProblem p_;
  std::vector<PackedMatrix> weights_;
  Rows x_;
  Buffer y_, ws_;
  size_t next_ = 0;
};

template <class Bench, class Op>
void buckets_of(const char* op, Bench& bench, const Options& o, Report& out, Probe& probe) {
  Stream stream{&probe.team()};
  for (const Tactic& t : isa_tactics(this_cpu())) {
    if (t.isa == Isa::kScalar) continue;
    for (const int rows : kRowBuckets) {
      std::vector<double> times[2];
      const int rounds = rows >= 256 ? std::max(3, o.rounds / 4) : o.rounds;
      for (int round = 0; round < rounds; ++round)
        for (int m = 0; m < 2; ++m)
          for (int i = 0; i < (rows < 64 ? 6 : 1); ++i)
            times[m].push_back(bench.run({&backend<Op>(m == 0 ? "cpu_gemv" : "cpu_gemm"), t}, rows, stream));
      const double v = best_tenth(times[0]), m = best_tenth(times[1]);
      out.line(fmt::format("{:7} {:10} {:5} {:12.1f} {:12.1f}   {:8} {:5.0f} %", op, t.name, rows, v * 1e6, m * 1e6,
                           v < m ? "cpu_gemv" : "cpu_gemm", 100 * (std::max(v, m) / std::min(v, m) - 1)));
      out.record(fmt::format(
          R"({{"section":"buckets","op":"{}","tactic":"{}","threads":{},"rows":{},"gemv_us":{:.1f},"gemm_us":{:.1f},"samples":{}}})",
          op, t.name, o.threads, rows, v * 1e6, m * 1e6, times[0].size()));
    }
  }
}

}  // namespace

void expert(const Options& o, Report& out) {
  out.line("one-row expert product, nvfp4, bf16 activations: 4 experts of 32 at random, weights from memory");
  out.line(fmt::format("{:10} {:>7} {:>9} {:>10} {:>8} {:>10} {:>9}", "tactic", "threads", "us", "median us", "GB/s",
                       "probe GB/s", "fraction"));
  MoeBench moe(10, 1);
  const double bytes = 4. * static_cast<double>(moe.expert_bytes());
  for (int threads = 1; threads <= o.threads; ++threads) {
    Probe probe(threads);
    Stream stream{&probe.team()};
    std::map<std::string, std::vector<double>> times;
    const auto tactics = isa_tactics(this_cpu());
    for (int round = 0; round < o.rounds; ++round)
      for (const Tactic& t : tactics) {
        probe.read(6);
        for (int i = 0; i < 10; ++i) times[t.name].push_back(moe.run({&backend<MoeOp>("cpu_gemv"), t}, 1, stream));
      }
    for (const Tactic& t : tactics) {
      const double best = best_tenth(times[t.name]), rate = bytes / best / 1e9;
      out.line(fmt::format("{:10} {:7} {:9.1f} {:10.1f} {:8.1f} {:10.1f} {:9.2f}", t.name, threads, best * 1e6,
                           median(times[t.name]) * 1e6, rate, probe.read_gbs(), rate / probe.read_gbs()));
      out.record(fmt::format(
          R"({{"section":"expert","tactic":"{}","threads":{},"us":{:.1f},"median_us":{:.1f},"gbs":{:.2f},"probe_gbs":{:.2f},"probe_median_gbs":{:.2f},"fraction":{:.3f},"samples":{}}})",
          t.name, threads, best * 1e6, median(times[t.name]) * 1e6, rate, probe.read_gbs(), probe.median_gbs(),
          rate / probe.read_gbs(), times[t.name].size()));
    }
  }
}

void buckets(const Options& o, Report& out) {
  out.line(
      fmt::format("row buckets, {} threads, nvfp4 weights from memory, bf16 activations (us per call)", o.threads));
  out.line(fmt::format("{:7} {:10} {:>5} {:>12} {:>12}   {:8} {:>7}", "op", "tactic", "rows", "gemv", "gemm", "faster",
                       "by"));
  Probe probe(o.threads);
  {
    MoeBench moe(6, 1024);
    buckets_of<MoeBench, MoeOp>("moe", moe, o, out, probe);
  }
  LinearBench linear({1024, 4096, WeightFormat::kNvfp4, Activation::kBf16}, 40, 1024);
  buckets_of<LinearBench, LinearOp>("linear", linear, o, out, probe);
}

// A layout of its own for many rows: weights decoded to bfloat16 panels at load, 3.6 times the bytes. What it could win
// is what bfloat16 weights show, which lie in such panels.
void layouts(const Options& o, Report& out) {
  out.line(fmt::format(
      "{} threads, linear 1024 -> 4096, us per call: nvfp4 in tile16 by gemv and gemm, decoded at load", o.threads));
  out.line(fmt::format("{:>5} {:>10} {:>10} {:>12} {:>12}   {:>7}", "rows", "gemv", "gemm", "decoded gemv",
                       "decoded gemm", "wins"));
  Probe probe(o.threads);
  Stream stream{&probe.team()};
  LinearBench packed({1024, 4096, WeightFormat::kNvfp4, Activation::kBf16}, 24, 512),
      decoded({1024, 4096, WeightFormat::kBf16, Activation::kBf16}, 24, 512);
  const Tactic isa = isa_tactics(this_cpu()).back();
  for (const int rows : kRowBuckets) {
    std::vector<double> times[4];
    const int rounds = rows >= 256 ? std::max(4, o.rounds / 2) : 4 * o.rounds;
    for (int round = 0; round < rounds; ++round)
      for (size_t i = 0; i < 4; ++i)
        times[i].push_back((i < 2 ? packed : decoded)
                               .run({&backend<LinearOp>(i % 2 == 0 ? "cpu_gemv" : "cpu_gemm"), isa}, rows, stream));
    double us[4];
    for (size_t i = 0; i < 4; ++i) us[i] = best_tenth(times[i]) * 1e6;
    const double one = std::min(us[0], us[1]), other = std::min(us[2], us[3]);
    out.line(fmt::format("{:5} {:10.1f} {:10.1f} {:12.1f} {:12.1f}   {:5.0f} %", rows, us[0], us[1], us[2], us[3],
                         100 * (one / other - 1)));
    out.record(fmt::format(
        R"({{"section":"layouts","isa":"{}","threads":{},"rows":{},"gemv_us":{:.1f},"gemm_us":{:.1f},"decoded_gemv_us":{:.1f},"decoded_gemm_us":{:.1f}}})",
        isa.name, o.threads, rows, us[0], us[1], us[2], us[3]));
  }
}

}  // namespace mettle::bench

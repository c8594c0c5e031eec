// CPU kernels: one-row expert product against the read bandwidth beside it, gemv against gemm by row bucket, and what
// the pieces add up to for the 1.4 B shape (hidden 1024, 24 layers, 32 experts top-4 of width 512, heads 16/4 x 128,
// vocabulary 32,000, everything nvfp4); the methods of attention and gdn against each other, decode and prompts;
// what a second layout could win.
//   kernels_bench [--threads N] [--only expert|buckets|attention|gdn|layouts|model|load|sample] [--rounds N] [--json
//   FILE]
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "ops/dispatch.h"
#include "probe.h"

namespace mettle::bench {
namespace {

std::mt19937& random() {
  static std::mt19937 engine(11);
  return engine;
}

// Speed does not depend on the values, but every matrix has its own memory.
PackedMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols) {
  std::vector<uint8_t> data(static_cast<size_t>(rows * cols) * 4), scales(static_cast<size_t>(rows * cols / 16), 0x30);
  for (size_t i = 0; i + 4 <= data.size(); i += 4) {
    const uint32_t v = format == WeightFormat::kNvfp4 ? static_cast<uint32_t>(i) * 2654435761u : 0x3C003C00u;
    std::memcpy(&data[i], &v, 4);
  }
  RawMatrix raw{.format = format, .rows = rows, .cols = cols, .data = data.data(), .scales = scales.data()};
  raw.row_bytes = format == WeightFormat::kNvfp4 ? cols / 2 : format == WeightFormat::kF32 ? cols * 4 : cols * 2;
  raw.scale_row_bytes = cols / 16;
  raw.global_scale = 0.01f;
  return pack_tile16({raw});
}

struct Shape14 {
  static constexpr int kHidden = 1024, kLayers = 24, kExperts = 32, kTopK = 4, kWidth = 512, kHeads = 16, kKvHeads = 4,
                       kHeadDim = 128;
  static constexpr int kVocab = 32000;
  static MoeProblem moe() { return {.hidden = kHidden, .experts = kExperts, .top_k = kTopK, .width = kWidth}; }
  static AttentionProblem attention() {
    return {.hidden = kHidden,
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim,
            .rotary_dim = kHeadDim,
            .qkv_format = WeightFormat::kNvfp4,
            .out_format = WeightFormat::kNvfp4};
  }
  static LinearProblem head() { return {kHidden, kVocab, WeightFormat::kNvfp4, Activation::kBf16}; }
};

template <class Op>
const Backend<Op>& backend(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == name) return *b;
  fail(Code::kInternal, fmt::format("bench: no backend {}", name));
}

// Random rows in bfloat16.
struct Rows {
  Buffer memory;
  TensorView view;
  Rows(DType dtype, int64_t rows, int64_t cols)
      : memory(static_cast<size_t>(rows * cols) * 4), view{memory.data(), dtype, {rows, cols}} {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * cols; ++i) {
      if (dtype == DType::kBF16)
        view.as<uint16_t>()[i] = float_to_bf16(normal(random()));
      else
        view.as<float>()[i] = 0;
    }
  }
};

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

struct Report {
  std::string json;
  void line(const std::string& text) { std::printf("%s\n", text.c_str()), std::fflush(stdout); }
  void record(const std::string& object) { json += (json.empty() ? "  " : ",\n  ") + object; }
};

struct Options {
  int threads = usable_cores(), rounds = 15;
  std::string only, json;
};

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
  const int rounds = step.rows >= 64 ? std::max(3, o.rounds / 4) : o.rounds;
  for (int round = 0; round < rounds; ++round)
    for (size_t e = 0; e < entries.size(); ++e)
      for (int i = 0; i < (step.rows < 64 ? 4 : 1); ++i)
        times[e].push_back(run_one(Choice<Op>{&backend<Op>(names[entries[e].first]), entries[e].second}));
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

void title(const Options& o, Report& out, const std::array<const char*, 2>& names) {
  out.line(fmt::format("{} threads, nvfp4 projections, bf16 activations (us per call, the better of gemv and gemm)",
                       o.threads));
  out.line(fmt::format("{:9} {:11} {:24} {:10} {:>12} {:>12}   {:12} {:>7}", "op", "shape", "step", "set", names[0],
                       names[1], "faster", "by"));
}

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
      Buffer ws;
      compare<AttentionOp>("attention", name, step, p, kNames, o, out, [&](const Choice<AttentionOp>& c) {
        const size_t bytes = c.backend->workspace(c.tactic, p, step.rows, o.threads);
        if (ws.size() < bytes) ws = Buffer(bytes);
        const double start = seconds(o.threads);
        run_op(c,
               {p,
                &batch,
                x.view,
                &w,
                {k.view.data, DType::kBF16, cache},
                {v.view.data, DType::kBF16, cache},
                partial.view,
                {ws.data(), bytes}},
               stream);
        return seconds(o.threads) - start;
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
      Buffer ws;
      compare<GdnOp>("gdn", name, step, p, kNames, o, out, [&](const Choice<GdnOp>& c) {
        const size_t bytes = c.backend->workspace(c.tactic, p, step.rows, o.threads);
        if (ws.size() < bytes) ws = Buffer(bytes);
        const double start = seconds(o.threads);
        run_op(c,
               {p,
                &batch,
                x.view,
                &w,
                {conv.view.data, DType::kF32, {step.sequences(), p.channels(), 3}},
                {state.view.data, DType::kF32, {step.sequences(), p.value_heads, p.dk, p.dv}},
                partial.view,
                {ws.data(), bytes}},
               stream);
        return seconds(o.threads) - start;
      });
    }
  }
}

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

// Packing at load, and sampling over a vocabulary of 248,320, both on one thread.
void load_and_sample(const Options& o, Report& out) {
  Probe probe(1);
  Stream stream{&probe.team()};
  out.line("one thread: packing (GB/s of checkpoint bytes) and sampling of one row of 248,320 logits (ms)");
  for (const WeightFormat format :
       {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16, WeightFormat::kF32}) {
    constexpr int64_t kRows = 1024, kCols = 1024;
    std::vector<uint8_t> data(static_cast<size_t>(kRows * kCols * 4), 0x11),
        scales(static_cast<size_t>(kRows * kCols / 16), 0x30);
    RawMatrix raw{.format = format,
                  .rows = kRows,
                  .cols = kCols,
                  .data = data.data(),
                  .scales = scales.data(),
                  .scale_row_bytes = kCols / 16};
    raw.row_bytes = format == WeightFormat::kNvfp4  ? kCols / 2
                    : format == WeightFormat::kFp8  ? kCols
                    : format == WeightFormat::kBf16 ? kCols * 2
                                                    : kCols * 4;
    std::vector<double> times;
    for (int i = 0; i < 4 * o.rounds; ++i) {
      const double start = seconds(1);
      const PackedMatrix m = pack_tile16({raw});
      times.push_back(seconds(1) - start);
    }
    const double rate = static_cast<double>(kRows * raw.row_bytes) / best_tenth(times) / 1e9;
    out.line(fmt::format("pack {:8} {:8.2f}", name_of(format), rate));
    out.record(fmt::format(R"({{"section":"pack","format":"{}","gbs":{:.3f}}})", name_of(format), rate));
  }
  const SampleProblem p{248320, 248320};
  std::vector<float> logits(static_cast<size_t>(p.vocab));
  std::normal_distribution<float> normal(0, 3);
  for (float& l : logits) l = normal(random());
  for (const char* name : {"cpu", "reference"}) {
    const Backend<SampleOp>& b = backend<SampleOp>(name);
    const Tactic tactic = b.tactics(p, this_cpu()).back();
    Buffer ws(b.workspace(tactic, p, 1, 1));
    for (const float temperature : {0.f, 1.f}) {
      std::vector<double> times;
      SampleResult result;
      for (int i = 0; i < o.rounds; ++i) {
        const SampleRow row{.temperature = temperature, .top_p = temperature > 0 ? .95f : 1.f, .random = i / 100.0};
        const double start = seconds(1);
        run_op<SampleOp>(
            {&b, tactic},
            {p, 1, {logits.data(), DType::kF32, {1, p.vocab}}, {&row, 1}, {&result, 1}, {ws.data(), ws.size()}},
            stream);
        times.push_back(seconds(1) - start);
      }
      out.line(fmt::format("sample {:10} temperature {} {:8.2f}", name, temperature, best_tenth(times) * 1e3));
      out.record(fmt::format(R"({{"section":"sample","backend":"{}","temperature":{},"ms":{:.3f}}})", name, temperature,
                             best_tenth(times) * 1e3));
    }
  }
}

// Rows given to threads against a row shared by them, drawn with top-p, drawn with top-k and the best token.
void sample_methods(const Options& o, Report& out) {
  out.line(fmt::format("sample, {} threads (us per call)", o.threads));
  out.line(fmt::format("{:>7} {:>5} {:8} {:>10} {:>10}   {:10} {:>7}", "vocab", "rows", "draws", "cpu", "cpu_shared",
                       "faster", "by"));
  Probe probe(o.threads);
  Stream stream{&probe.team()};
  const SampleRow kinds[] = {{.temperature = 0.7f, .top_p = 0.95f}, {.temperature = 0.7f, .top_k = 20}, {}};
  for (const int vocab : {6144, 248320})
    for (const int rows : {1, 2, 4, 16}) {
      const SampleProblem p{vocab, vocab};
      std::vector<float> logits(static_cast<size_t>(rows * vocab));
      std::normal_distribution<float> normal(0, 3);
      for (float& l : logits) l = normal(random());
      for (const SampleRow& kind : kinds) {
        std::vector<double> times[2];
        std::vector<SampleResult> results(static_cast<size_t>(rows));
        for (int round = 0; round < o.rounds; ++round)
          for (int m = 0; m < 2; ++m) {
            const Backend<SampleOp>& b = backend<SampleOp>(m == 0 ? "cpu" : "cpu_shared");
            const Tactic tactic = b.tactics(p, this_cpu()).back();
            Buffer ws(b.workspace(tactic, p, rows, o.threads));
            for (int i = 0; i < 6; ++i) {
              std::vector<SampleRow> params(results.size(), kind);
              for (SampleRow& r : params) r.random = std::uniform_real_distribution<>()(random());
              const double start = seconds(o.threads);
              run_op<SampleOp>(
                  {&b, tactic},
                  {p, rows, {logits.data(), DType::kF32, {rows, vocab}}, params, results, {ws.data(), ws.size()}},
                  stream);
              if (i > 0) times[m].push_back(seconds(o.threads) - start);  // the first finds its scratch in no cache
            }
          }
        const double one = best_tenth(times[0]), shared = best_tenth(times[1]);
        const std::string_view draws = kind.temperature == 0 ? "best" : kind.top_k > 0 ? "top_k 20" : "top_p .95";
        out.line(fmt::format("{:7} {:5} {:9} {:9.1f} {:10.1f}   {:10} {:5.0f} %", vocab, rows, draws, one * 1e6,
                             shared * 1e6, one < shared ? "cpu" : "cpu_shared",
                             100 * (std::max(one, shared) / std::min(one, shared) - 1)));
        out.record(fmt::format(
            R"({{"section":"sample","vocab":{},"rows":{},"draws":"{}","threads":{},"cpu_us":{:.1f},"shared_us":{:.1f},"samples":{}}})",
            vocab, rows, draws, o.threads, one * 1e6, shared * 1e6, times[0].size()));
      }
    }
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 >= argc) fail(Code::kInvalidRequest, fmt::format("{}: needs a value", name));
    const std::string value = argv[++i];
    if (name == "--threads")
      o.threads = std::stoi(value);
    else if (name == "--rounds")
      o.rounds = std::stoi(value);
    else if (name == "--only")
      o.only = value;
    else if (name == "--json")
      o.json = value;
    else
      fail(Code::kInvalidRequest, fmt::format("unknown option {}", name));
  }
  return o;
}

}  // namespace
}  // namespace mettle::bench

int main(int argc, char** argv) {
  using namespace mettle::bench;
  try {
    const Options o = parse(argc, argv);
    Report out;
    out.line(mettle::this_cpu().model);
    if (o.only.empty() || o.only == "expert") expert(o, out);
    if (o.only.empty() || o.only == "buckets") buckets(o, out);
    if (o.only.empty() || o.only == "attention") attention_methods(o, out);
    if (o.only.empty() || o.only == "gdn") gdn_methods(o, out);
    if (o.only.empty() || o.only == "layouts") layouts(o, out);
    if (o.only.empty() || o.only == "model") model(o, out);
    if (o.only.empty() || o.only == "load") load_and_sample(o, out);
    if (o.only.empty() || o.only == "sample") sample_methods(o, out);
    if (!o.json.empty()) std::ofstream(o.json) << "[\n" << out.json << "\n]\n";
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

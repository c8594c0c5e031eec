#include "ops/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace mettle {
namespace {

struct Length {
  int q, ctx;
};

// Of the cache of a case; 1 where it holds no codes.
struct Scales {
  double k = 1, v = 1;
};

struct Maker {
  const AttentionProblem& p;
  CaseRandom& random;
  Layout layout;

  // Blocks in shuffled order, block 0 and some others unused. Contexts beyond `alias` blocks repeat their first ones
  // (as a shared prefix would), so that far positions need little memory.
  CaseBatch batch_of(const std::vector<Length>& lengths, int alias, int* blocks) {
    CaseBatch b;
    b.block_size = p.block_size;
    int needed = 0;
    std::vector<int> own;
    for (const Length& l : lengths) {
      const int all = (l.q + l.ctx + p.block_size - 1) / p.block_size, tail = l.ctx / p.block_size;
      own.push_back(std::min(tail, alias) + all - tail);
      needed += own.back();
    }
    *blocks = needed + 4;
    std::vector<int32_t> free;
    for (int i = 1; i < *blocks; ++i) free.push_back(i);
    for (size_t i = free.size(); i > 1; --i)
      std::swap(free[i - 1], free[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    for (size_t s = 0; s < lengths.size(); ++s) {
      const Length& l = lengths[s];
      const int all = (l.q + l.ctx + p.block_size - 1) / p.block_size, tail = l.ctx / p.block_size;
      const int shared = std::min(tail, alias);
      const std::vector<int32_t> mine(free.end() - own[s], free.end());
      free.resize(free.size() - mine.size());
      std::vector<int32_t> table;
      for (int i = 0; i < all; ++i)
        table.push_back(mine[static_cast<size_t>(i < tail ? i % shared : i - tail + shared)]);
      b.tables.push_back(std::move(table));
      b.sequences.push_back({b.rows, l.q, l.ctx, nullptr, -1, -1});
      b.rows += l.q;
    }
    for (size_t s = 0; s < b.tables.size(); ++s) b.sequences[s].block_table = b.tables[s].data();
    return b;
  }

  // Everything NaN, then the context's places filled with what `value` says.
  template <class F>
  CaseInput cache_of(const AttentionCase& c, F value) {
    const int64_t width = int64_t{p.kv_heads} * p.head_dim;
    CaseInput cache(int64_t{c.blocks} * p.block_size, width, p.cache_dtype());
    for (int64_t r = 0; r < cache.rows(); ++r) cache.fill_row_nan(r);
    for (const BatchSequence& s : c.batch.sequences)
      for (int64_t i = 0; i < s.ctx_len; ++i) {
        const int64_t row = int64_t{s.block_table[i / p.block_size]} * p.block_size + i % p.block_size;
        if (!std::isnan(cache.get(row, 0))) continue;
        for (int64_t d = 0; d < width; ++d) cache.set(row, d, value(s, i, d));
      }
    return cache;
  }

  AttentionCase make(const std::string& kind, std::shared_ptr<const AttentionCaseWeights> weights,
                     const std::vector<Length>& lengths, double scale = 1, int alias = 1 << 20) {
    AttentionCase c;
    c.kind = kind;
    c.weights = std::move(weights);
    c.batch = batch_of(lengths, alias, &c.blocks);
    c.x = CaseInput(c.batch.rows, p.hidden, dtype_of(p.activation));
    c.x.fill_normal(random, scale);
    const auto normal = [&](double by) {
      return cache_of(c, [this, by](const BatchSequence&, int64_t, int64_t) { return random.normal() / by; });
    };
    c.k_cache = normal(static_cast<double>(c.weights->raw.k_scale));
    c.v_cache = normal(static_cast<double>(c.weights->raw.v_scale));
    return c;
  }

  // `count` sequences of one row each, twins of the first kTwins, whose context blocks they share.
  AttentionCase make_twins(std::shared_ptr<const AttentionCaseWeights> weights, int count) {
    std::vector<Length> lengths;
    // Where kernels split the keys, the last twin's make three splits of 64: each of up to 170 sequences may have
    // several.
    const int longest = layout == Layout::kP64 ? std::max(kTwins - 1, 160 / p.block_size) : kTwins - 1;
    for (int i = 0; i < count; ++i)
      lengths.push_back({1, p.block_size * (i % kTwins + 1 < kTwins ? i % kTwins : longest)});
    AttentionCase c = make(fmt::format("decode{}", count), std::move(weights), lengths);
    c.batch.twins = kTwins;
    std::vector<char> seen(static_cast<size_t>(c.blocks));
    for (size_t s = 0; s < c.batch.sequences.size(); ++s) {
      const size_t context = c.batch.tables[s].size() - 1;
      for (size_t i = 0; i < context; ++i) {
        if (s >= kTwins) c.batch.tables[s][i] = c.batch.tables[s % kTwins][i];
        seen[static_cast<size_t>(c.batch.tables[s][i])] = 1;
      }
      for (int64_t i = 0; s >= kTwins && i < p.hidden; ++i)
        c.x.set(static_cast<int64_t>(s), i, c.x.get(static_cast<int64_t>(s % kTwins), i));
    }
    for (int64_t row = 0; row < c.k_cache.rows(); ++row)
      if (seen[static_cast<size_t>(row / p.block_size)] == 0) c.k_cache.fill_row_nan(row), c.v_cache.fill_row_nan(row);
    return c;
  }

  std::shared_ptr<AttentionCaseWeights> finish(CaseWeight qkv, CaseWeight out, double q_norm, double k_norm,
                                               double spread, Scales scales) {
    auto w = std::make_shared<AttentionCaseWeights>();
    w->raw.qkv = qkv.raw;
    w->raw.out = out.raw;
    for (int i = 0; p.qk_norm && i < p.head_dim; ++i) {
      w->raw.q_norm.push_back(static_cast<float>(q_norm + spread * random.normal()));
      w->raw.k_norm.push_back(static_cast<float>(k_norm + spread * random.normal()));
    }
    for (int i = 0; i < p.rotary_dim / 2; ++i)
      w->raw.inv_freq.push_back(static_cast<float>(std::pow(1e5, -2.0 * i / p.rotary_dim)));
    if (p.cache == CacheFormat::kE4M3) {
      w->raw.k_scale = static_cast<float>(scales.k);
      w->raw.v_scale = static_cast<float>(scales.v);
    }
    w->packed = pack_attention(layout, w->raw);
    w->memory = {std::move(qkv), std::move(out)};
    return w;
  }

  // Scales that are no powers of two and far apart: one that is left out, used twice or taken for the other is seen.
  std::shared_ptr<const AttentionCaseWeights> typical(double norm = 1, Scales scales = {0.7, 0.043}) {
    const int64_t q = int64_t{p.heads} * (p.gate ? 2 : 1) * p.head_dim, kv = int64_t{p.kv_heads} * p.head_dim;
    const double n = norm - (p.norm_plus_one ? 1 : 0);
    return finish(case_weight(p.qkv_format, {q, kv, kv}, p.hidden, CaseFill::kTypical, random, 1),
                  case_weight(p.out_format, {p.hidden}, int64_t{p.heads} * p.head_dim, CaseFill::kTypical, random, 1),
                  n, n, 0.1, scales);
  }
};

// x holds a pattern of signs in its first part and the pattern of the key that is looked for in its second; weights
// pick single columns. Rotary dims of q and k stay zero. So each query sees its key more than 104 above the rest, p is
// 1 and 0, and V, block table, mask, head map and gate are read out bit for bit.
struct Selector {
  const AttentionProblem& p;
  int part;         // columns of a pattern
  int gate_column;  // holds the gate: 32, 0 or -128
  explicit Selector(const AttentionProblem& p) : p(p), part((p.hidden - 1) / 2), gate_column(p.hidden - 1) {}
  int free_dims() const { return p.head_dim - p.rotary_dim; }
  bool possible() const {
    return free_dims() >= 16 && part >= 48 && (p.qk_norm || p.qkv_format != WeightFormat::kNvfp4);
  }
  // One differing sign must take a score far enough below for exp to be zero: by the norm's weight, else by size.
  static constexpr double kNorm = 32;
  double unit() const { return p.qk_norm ? 4 : 64; }
  int place(int group, int d) const { return (group * free_dims() + d * 7) % part; }  // column of a key's dim

  // In E2M1 values, so that every format holds them.
  double qkv(int64_t row, int64_t col, bool uniform) const {
    const int64_t stride = p.gate ? 2 * p.head_dim : p.head_dim, q_rows = p.heads * stride,
                  kv = int64_t{p.kv_heads} * p.head_dim;
    if (row < q_rows) {
      const auto head = static_cast<int>(row / stride);
      const int64_t d = row % stride;
      if (d >= p.head_dim) return col == gate_column ? 1 : 0;
      if (d < p.rotary_dim || uniform) return 0;
      return col == part + place(head / (p.heads / p.kv_heads), static_cast<int>(d - p.rotary_dim)) ? unit() : 0;
    }
    const int64_t at = (row - q_rows) % kv, group = at / p.head_dim, d = at % p.head_dim;
    if (row < q_rows + kv) {
      if (d < p.rotary_dim) return 0;
      return col == place(static_cast<int>(group), static_cast<int>(d - p.rotary_dim)) ? unit() : 0;
    }
    if (col >= part) return 0;
    constexpr double kValues[] = {0, 1, 2, 3, 4, 6, -1, -3};  // V: sums of a few columns, different for every dim
    return (col * 5 + at * 3) % 11 == 0 ? kValues[(at + col * 3 + at / 7) % 8] : 0;
  }
};

void add_designed(Maker& m, std::vector<AttentionCase>& out) {
  const AttentionProblem& p = m.p;
  const Selector select(p);
  if (!select.possible()) return;
  for (const bool uniform : {false, true}) {
    CaseWeight qkv = case_weight_of(p.qkv_format, p.qkv_rows(), p.hidden,
                                    [&](int64_t r, int64_t c) { return select.qkv(r, c, uniform); });
    CaseWeight o = case_weight(p.out_format, {p.hidden}, int64_t{p.heads} * p.head_dim, CaseFill::kExact, m.random);
    const double norm = Selector::kNorm - (p.norm_plus_one ? 1 : 0);
    const auto weights = m.finish(std::move(qkv), std::move(o), norm, norm, 0, {0.5, 0.25});
    const auto k_scale = static_cast<double>(weights->raw.k_scale), v_scale = static_cast<double>(weights->raw.v_scale);
    AttentionCase c = m.make(uniform ? "uniform" : "exact_selector", weights,
                             {{17, 40}, {1, 15}, {1, 16}, {1, 31}, {33, 64}, {1, 300}, {2, 1}});
    c.exact = !uniform;
    // Patterns of every position of every sequence; a row looks for one that it may see.
    for (const BatchSequence& s : c.batch.sequences) {
      const int64_t n = s.ctx_len + s.q_len;
      std::vector<std::vector<double>> pattern(static_cast<size_t>(n));
      for (auto& row : pattern)
        for (int i = 0; i < select.part; ++i) row.push_back(m.random.chance(0.5) ? 1 : -1);
      for (int64_t i = 0; i < s.ctx_len; ++i) {
        const int64_t row = int64_t{s.block_table[i / p.block_size]} * p.block_size + i % p.block_size;
        const double unit = p.qk_norm
                                ? Selector::kNorm * std::sqrt(static_cast<double>(p.head_dim) / select.free_dims())
                                : select.unit();
        for (int g = 0; g < p.kv_heads; ++g)
          for (int d = 0; d < p.head_dim; ++d) {
            const int64_t at = int64_t{g} * p.head_dim + d;
            const auto& own = pattern[static_cast<size_t>(i)];
            c.k_cache.set(
                row, at,
                d < p.rotary_dim ? 0 : unit / k_scale * own[static_cast<size_t>(select.place(g, d - p.rotary_dim))]);
            c.v_cache.set(row, at, (m.random.below(129) - 64) / v_scale);
          }
      }
      for (int r = 0; r < s.q_len; ++r) {
        const int64_t row = s.first_row + r, self = s.ctx_len + r;
        const int64_t pick = r % 4 == 0 ? self : m.random.below(static_cast<int>(self) + 1);
        for (int i = 0; i < select.part; ++i) {
          c.x.set(row, i, pattern[static_cast<size_t>(self)][static_cast<size_t>(i)]);
          c.x.set(row, select.part + i, pattern[static_cast<size_t>(pick)][static_cast<size_t>(i)]);
        }
        for (int64_t i = 2 * int64_t{select.part}; i < p.hidden; ++i) c.x.set(row, i, 0);
        const double gates[] = {32, 32, 0, 32, 0, -128};
        c.x.set(row, select.gate_column, gates[m.random.below(6)]);
      }
    }
    out.push_back(std::move(c));
  }
}

// x holds the query of every head as it is before its norm, so that a case can point it anywhere; the step's own keys
// are zero.
struct Pointed {
  static constexpr double kNorm = 4;
  const AttentionProblem& p;
  bool possible() const { return p.hidden > p.head_dim; }
  double qkv(int64_t row, int64_t col) const {
    const int64_t stride = p.gate ? 2 * p.head_dim : p.head_dim, q_rows = p.heads * stride,
                  kv = int64_t{p.kv_heads} * p.head_dim;
    const int64_t d = row < q_rows ? row % stride : (row - q_rows) % p.head_dim;
    if (row < q_rows && d >= p.head_dim) return col == p.hidden - 1 ? 1 : 0;
    if (row < q_rows) return col == d ? kNorm : 0;
    return row >= q_rows + kv && col == d ? 1 : 0;
  }
  // What the op makes of row `r` of x at this position; turned: radians by which every pair is turned on.
  std::vector<double> query(const AttentionCase& c, int64_t r, int64_t position, double turned) const {
    std::vector<double> q(static_cast<size_t>(p.head_dim));
    double squares = 0;
    for (size_t d = 0; d < q.size(); ++d) {
      q[d] = kNorm * double{c.x.get(r, static_cast<int64_t>(d))};
      squares += q[d] * q[d] / static_cast<double>(p.head_dim);
    }
    for (size_t d = 0; p.qk_norm && d < q.size(); ++d)
      q[d] *= (double{c.weights->raw.q_norm[d]} + (p.norm_plus_one ? 1 : 0)) /
              std::sqrt(squares + static_cast<double>(p.eps));
    const auto half = static_cast<size_t>(p.rotary_dim / 2);
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * c.weights->raw.inv_freq[i];
      const double to = static_cast<double>(angle) + turned, a = q[i], b = q[i + half];
      q[i] = a * std::cos(to) - b * std::sin(to);
      q[i + half] = b * std::cos(to) + a * std::sin(to);
    }
    return q;
  }
};

// Each row `r` of x was pointed somewhere: one key of its sequence, where no other row's stands, scores `score(r)` and
// has the value zero. The others score about 1.
template <class F>
void add_strong_keys(Maker& m, AttentionCase& c, double turned, F score) {
  const AttentionProblem& p = m.p;
  const int64_t width = int64_t{p.kv_heads} * p.head_dim;
  for (int64_t row = 0; row < c.k_cache.rows(); ++row)
    for (int64_t d = 0; d < width; ++d)
      c.k_cache.set(row, d, double{c.k_cache.get(row, d)} / Pointed::kNorm);  // NaN stays
  const double root = std::sqrt(static_cast<double>(p.head_dim));
  for (const BatchSequence& s : c.batch.sequences)
    for (int r = 0; r < s.q_len; ++r) {
      const int64_t i = (m.random.below(s.ctx_len) / s.q_len * s.q_len + r) % s.ctx_len;
      const int64_t place = int64_t{s.block_table[i / p.block_size]} * p.block_size + i % p.block_size;
      const std::vector<double> seen = Pointed{p}.query(c, s.first_row + r, s.ctx_len + r, 0),
                                key = Pointed{p}.query(c, s.first_row + r, s.ctx_len + r, turned);
      double dot = 0;
      for (size_t d = 0; d < seen.size(); ++d) dot += seen[d] * key[d];
      for (int64_t at = 0; at < width; ++at) {
        c.k_cache.set(place, at,
                      score(r) * root / dot * key[static_cast<size_t>(at % p.head_dim)] /
                          static_cast<double>(c.weights->raw.k_scale));
        c.v_cache.set(place, at, 0);
      }
    }
}

void add_pointed(Maker& m, bool full, std::vector<AttentionCase>& out) {
  const AttentionProblem& p = m.p;
  const Pointed pointed{p};
  if (!pointed.possible()) return;
  const double norm = Pointed::kNorm - (p.norm_plus_one ? 1 : 0);
  const auto weights = m.finish(
      case_weight_of(p.qkv_format, p.qkv_rows(), p.hidden, [&](int64_t r, int64_t c) { return pointed.qkv(r, c); }),
      case_weight(p.out_format, {p.hidden}, int64_t{p.heads} * p.head_dim, CaseFill::kTypical, m.random, 1), norm, norm,
      0.1, {1.3, 0.6});
  const auto clear = [&](AttentionCase& c) {
    for (int64_t r = 0; r < c.batch.rows; ++r)
      for (int64_t i = 0; i < p.hidden; ++i)
        c.x.set(r, i, i + 1 == p.hidden ? 32 : i < p.head_dim ? double{c.x.get(r, i)} : 0);
  };
  // Gaps of 20 to 60: above, what is left of the other keys comes near the smallest float32.
  std::vector<Length> lengths;
  for (int i = 0; i < (full ? 24 : 6); ++i) lengths.push_back({1, 17 + 3 * i});
  AttentionCase deep = m.make("deep", weights, lengths);
  clear(deep);
  add_strong_keys(m, deep, 0, [&](int) { return 20 + 40 * m.random.uniform(); });
  out.push_back(std::move(deep));

  // The query lies along one pair of rotary dims and the strong key 75 degrees beside it, where the score depends most
  // on the angle.
  const int half = p.rotary_dim / 2;
  if (half == 0) return;
  lengths.clear();
  for (int i = 0; i < (full ? 16 : 4); ++i) lengths.push_back({1, 60 + 61 * i});
  lengths.push_back({2, 20'000});
  AttentionCase probe = m.make("rope_probe", weights, lengths, 1, 8);
  clear(probe);
  for (int64_t r = 0; r < probe.batch.rows; ++r) {
    const int64_t pair = (probe.batch.rows - 1 - r) % half;  // the slowest are the far ones'
    const double at = 2 * M_PI * m.random.uniform();
    for (int64_t d = 0; d < p.head_dim; ++d)
      probe.x.set(r, d, d == half - 1 - pair ? std::cos(at) : d == p.rotary_dim - 1 - pair ? std::sin(at) : 0);
  }
  add_strong_keys(m, probe, 75 * M_PI / 180, [](int) { return 48; });
  out.push_back(std::move(probe));
}

// Queries and probabilities that all lie at one side of their rounding to bf16, so that a fault of the rounding adds up
// instead of averaging out. q is 1 in even dims, and in odd ones 0.6 of a step above it: rounding takes 0.4 of a step,
// leaving it out takes nothing, cutting loses 0.6. Every second key is zero, with the value zero: wherever a block of
// keys or a split begins, the maximum is 0 from there on, and those keys stand in the sum alone. The other keys' scores
// lie below, each where exp is 2^-16 short of a bf16 value: rounding hardly moves it, cutting loses a whole step. By
// even dims that value is the first above 1/2, where a step is most; by odd dims any, so that a q that was rounded
// otherwise finds its probabilities anywhere between steps: all dims of a value share their errors, and values and
// output weights are positive, so these must average out over keys. A column of the output reads one head, since heads
// of a group are equal and so are their roundings.
struct Stepped {
  static constexpr double kStep = 0x1p-7;  // of bf16 at 1
  static constexpr double kAbove = 0.6 * kStep;
  static constexpr Scales kScales{0x1p-7, 0x1p-6};
  const AttentionProblem& p;
  bool possible() const { return p.activation == Activation::kBf16 && p.hidden >= 3 && p.head_dim >= 16; }
  double unit() const { return p.qk_norm ? 16 : 1; }  // of x: far above the norm's eps
  // Columns: 0 is q in every dim, 1 what odd dims have more where no norm's weight does it, the last the gate.
  double qkv(int64_t row, int64_t col) const {
    const int64_t stride = p.gate ? 2 * p.head_dim : p.head_dim;
    if (row >= p.heads * stride) return 0;  // the step's own keys and values
    const int64_t d = row % stride;
    if (d >= p.head_dim) return col == p.hidden - 1 ? 1 : 0;
    return col == 0 || (col == 1 && !p.qk_norm && d % 2 == 1) ? 1 : 0;
  }
  static double gap_of(double probability) { return -std::log(probability * (1 - 0x1p-16)); }
  static double even_gap() { return gap_of(0.5 + kStep / 2); }
  static double odd_gap(CaseRandom& random) {
    return gap_of((128 + random.below(128)) * 0x1p-13 / (1 + random.below(2)));
  }
  // Its parts become smaller and smaller, so that the score is exact to about float32.
  void set_key(CaseInput& keys, int64_t place, int head, bool odd, double gap) const {
    const double q = odd ? 1 + kStep : 1, scale = p.cache == CacheFormat::kE4M3 ? kScales.k : 1;
    double rest = -gap * std::sqrt(static_cast<double>(p.head_dim)) / (q * scale);
    for (int d = 0; d < p.head_dim; ++d) {
      const int64_t at = int64_t{head} * p.head_dim + d;
      keys.set(place, at, (d % 2 == 1) == odd ? rest : 0);
      rest -= double{keys.get(place, at)};
    }
  }
};

void add_stepped(Maker& m, std::vector<AttentionCase>& out) {
  const AttentionProblem& p = m.p;
  const Stepped stepped{p};
  if (!stepped.possible()) return;
  const double norm = p.norm_plus_one ? 0 : 1;
  const auto weights = m.finish(
      case_weight_of(p.qkv_format, p.qkv_rows(), p.hidden, [&](int64_t r, int64_t c) { return stepped.qkv(r, c); }),
      case_weight_of(p.out_format, p.hidden, int64_t{p.heads} * p.head_dim,
                     [&](int64_t r, int64_t c) { return c / p.head_dim == r % p.heads ? 1 : 0; }),
      norm, norm, 0, Stepped::kScales);
  for (size_t d = 1; d < weights->raw.q_norm.size(); d += 2)
    weights->raw.q_norm[d] = static_cast<float>(norm + Stepped::kAbove);
  std::fill(weights->raw.inv_freq.begin(), weights->raw.inv_freq.end(), 0.f);  // nothing turns
  weights->packed = pack_attention(m.layout, weights->raw);
  AttentionCase c = m.make("steps", weights, {{1, 480}, {1, 480}, {5, 64}, {3, 300}});
  for (int64_t r = 0; r < c.batch.rows; ++r)
    for (int64_t i = 0; i < p.hidden; ++i)
      c.x.set(r, i, i + 1 == p.hidden ? 32 : i == 0 ? stepped.unit() : i == 1 ? Stepped::kAbove : 0);
  std::vector<double> typical;  // of a value's dim, so that their roundings differ
  for (int64_t d = 0; d < int64_t{p.kv_heads} * p.head_dim; ++d) typical.push_back(1 + m.random.uniform());
  for (size_t s = 0; s < c.batch.sequences.size(); ++s)
    for (int64_t i = 0; i < c.batch.sequences[s].ctx_len; ++i) {
      const int64_t row = int64_t{c.batch.sequences[s].block_table[i / p.block_size]} * p.block_size + i % p.block_size;
      const bool zero = i % 2 == 0, odd = s % 2 == 1;
      for (int h = 0; h < p.kv_heads; ++h)
        stepped.set_key(c.k_cache, row, h, odd, zero ? 0 : odd ? Stepped::odd_gap(m.random) : Stepped::even_gap());
      for (size_t d = 0; d < typical.size(); ++d)
        c.v_cache.set(row, static_cast<int64_t>(d),
                      zero ? 0 : typical[d] * (0.75 + m.random.uniform() / 2) / double{weights->raw.v_scale});
    }
  out.push_back(std::move(c));
}

}  // namespace

std::vector<int> case_decode_counts(Layout layout, bool small) {
  if (layout == Layout::kP64) return {19, 39, 71, 131};
  return {small ? 71 : 19};
}

std::vector<AttentionCase> attention_cases(const AttentionProblem& p, uint64_t seed, int64_t budget, Layout layout) {
  CaseRandom random(seed);
  Maker m{p, random, layout};
  const auto weights = m.typical();
  std::vector<AttentionCase> out;
  const auto generic = [&](const std::string& kind, const std::vector<Length>& lengths) {
    out.push_back(m.make(kind, weights, lengths));
    out.back().generic = true;
  };
  // Projections cost this much a row; wide models get shorter cases.
  const int64_t row = int64_t{p.hidden} * (p.qkv_rows() + p.heads * p.head_dim);
  const bool full = row * 120 <= budget;
  generic("one_row", {{1, 0}});
  generic("decode", {{1, 0}, {1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 31}, {1, 63}, {1, 64}, {1, 127}});
  generic("prefill", {{full ? 70 : 19, 0}});
  generic("chunks", {{full ? 40 : 9, 63}, {5, 1}, {1, 30}, {full ? 17 : 2, 16}});
  generic("short", {{3, 0}, {2, 5}, {1, 9}});
  for (const int count : case_decode_counts(layout, full)) out.push_back(m.make_twins(weights, count));
  out.back().generic = true;
  if (!full) out.push_back(m.make("past_64", weights, {{66, 3}}));
  out.push_back(m.make("long", weights, {{2, 1500}}));
  out.push_back(m.make("far", weights, {{1, 100'000}}, 1, 8));
  out.push_back(m.make("tiny_qk", weights, {{9, 20}}, 1e-3));
  if (p.qk_norm) out.push_back(m.make("large_logits", m.typical(3.5), {{8, 300}, {6, 60}}));
  if (p.cache == CacheFormat::kE4M3) {
    // A third of the values lies beyond 448 scales; all lie within a few of the smallest code.
    out.push_back(m.make("saturated", m.typical(1, {1. / 448, 1. / 512}), {{9, 20}, {3, 0}, {1, 70}}));
    out.push_back(m.make("subnormal_codes", m.typical(1, {300, 700}), {{9, 20}, {3, 0}, {1, 70}}));
    out.push_back(m.make("scales_one", m.typical(1, {1, 1}), {{9, 20}, {3, 0}, {1, 70}}));
  }
  AttentionCase equal = m.make("rows_equal", weights, {{16, 5}});
  for (int64_t r = 1; r < equal.batch.rows; ++r)
    for (int64_t i = 0; i < p.hidden; ++i) equal.x.set(r, i, equal.x.get(0, i));
  out.push_back(std::move(equal));
  add_pointed(m, full, out);
  add_designed(m, out);
  add_stepped(m, out);
  return out;
}

AttentionCase attention_typical_case(const AttentionProblem& p, int rows, int sequences, int context, uint64_t seed,
                                     Layout layout, std::shared_ptr<const AttentionCaseWeights> weights) {
  CaseRandom of_weights(seed), random(seed + 1);  // the inputs are the same whether weights are given or not
  if (weights == nullptr) weights = Maker{p, of_weights, layout}.typical();
  Maker m{p, random, layout};
  std::vector<Length> lengths;
  for (int i = 0; i < sequences; ++i) lengths.push_back({rows * (i + 1) / sequences - rows * i / sequences, context});
  return m.make("typical", std::move(weights), lengths, 1, 4);
}

}  // namespace mettle

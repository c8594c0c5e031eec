// Faults of gdn in chunks: a plain copy of cpu_chunked's recurrence, between the projections and the norm of the
// backend itself.
#include <algorithm>
#include <cmath>

#include "healthy.h"
#include "ops/cpu/gdn_around.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

constexpr int kChunk = cpu::kDeltaRows;

enum class F {
  kNone,
  kBeginMissingForK,
  kBeginMissingForQ,
  kSinceCountsTheWrite,
  kSinceMissingInWrites,
  kSinceMissingInOutputs,
  kSinceByDivision,
  kOwnWriteNotRead,
  kOnlyRowBefore,
  kOnlyFirstHalf,
  kStateNotDecayed,
  kWritesNotDecayed,
  kDecayOfRowBefore,
  kBetaOfVAlone,
  kLastWriteLost,
  kWritesOfChunkBefore,
  kStateOfFirstChunk,
  kWritesBf16,
  kKeysBf16,
  kStateReadBf16,
  kLastOutputOfPartialChunk,
};

float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

template <F fault>
void recur(const cpu::Kernels&, const cpu::DeltaArgs& a) {
  const auto dv = static_cast<size_t>(a.dv);
  std::vector<float> u(kChunk * dv), kept(a.state, a.state + int64_t{a.dk} * a.dv);
  for (int64_t begin = 0; begin < a.rows; begin += kChunk) {
    const int rows = static_cast<int>(std::min<int64_t>(kChunk, a.rows - begin));
    const float* state = fault == F::kStateOfFirstChunk ? kept.data() : a.state;
    const auto row = [&](const float* of, int t) { return of + (begin + t) * a.row_stride; };
    const auto decay = [&](int t) { return a.decay[(begin + t) * a.gate_stride]; };
    float from_begin[kChunk], since[kChunk][kChunk] = {};
    for (int t = 0; t < rows; ++t) {
      from_begin[t] = (t > 0 ? from_begin[t - 1] : 1) * decay(t);
      for (int j = 0; j < t; ++j) since[t][j] = since[t - 1][j] * decay(t);
      since[t][t] = 1;
      if (fault == F::kSinceByDivision)
        for (int j = 0; j < t; ++j) since[t][j] = from_begin[t] / from_begin[j];
    }
    if (fault == F::kSinceCountsTheWrite)
      for (int t = 0; t < rows; ++t)
        for (int j = 0; j < t; ++j) since[t][j] *= decay(j);
    const auto dot = [&](const float* x, const float* y) {
      double sum = 0;
      for (int i = 0; i < a.dk; ++i) sum += static_cast<double>(fault == F::kKeysBf16 ? bf16(x[i]) : x[i]) * y[i];
      return static_cast<float>(sum);
    };
    const auto read = [&](const float* x, size_t c) {
      double sum = 0;
      for (int i = 0; i < a.dk; ++i) {
        const float s = state[static_cast<size_t>(i) * dv + c];
        sum += static_cast<double>(x[i]) * (fault == F::kStateReadBf16 ? bf16(s) : s);
      }
      return static_cast<float>(sum);
    };
    for (int t = 0; t < rows; ++t) {
      const float *k = row(a.k, t), *q = row(a.q, t), *v = row(a.v, t);
      const float beta = a.beta[(begin + t) * a.gate_stride];
      float by_k[kChunk], by_q[kChunk];
      for (int j = 0; j <= t; ++j) {
        by_k[j] = (fault == F::kSinceMissingInWrites ? 1 : since[t][j]) * dot(row(a.k, j), k);
        by_q[j] = (fault == F::kSinceMissingInOutputs ? 1 : since[t][j]) * dot(row(a.k, j), q);
        if (fault == F::kOnlyRowBefore && j + 1 < t) by_k[j] = 0;
        if (fault == F::kOnlyFirstHalf && j < 8 && t >= 8) by_q[j] = 0;
      }
      if (fault == F::kOwnWriteNotRead) by_q[t] = 0;
      for (size_t c = 0; c < dv; ++c) {
        float from_state = (fault == F::kBeginMissingForK ? 1 : from_begin[t]) * read(k, c);
        for (int j = 0; j < t; ++j) from_state += by_k[j] * u[static_cast<size_t>(j) * dv + c];
        float& write = u[static_cast<size_t>(t) * dv + c];
        write = fault == F::kBetaOfVAlone ? beta * v[c] - from_state : beta * (v[c] - from_state);
        if (fault == F::kWritesBf16) write = bf16(write);
        float o = (fault == F::kBeginMissingForQ ? 1 : from_begin[t]) * read(q, c);
        for (int j = 0; j <= t; ++j) o += by_q[j] * u[static_cast<size_t>(j) * dv + c];
        if (fault == F::kLastOutputOfPartialChunk && rows < kChunk && t == rows - 1 && t > 0)
          o = a.out[(begin + t - 1) * a.out_stride + static_cast<int64_t>(c)];
        a.out[(begin + t) * a.out_stride + static_cast<int64_t>(c)] = o;
      }
    }
    const int last = rows - 1, writes = fault == F::kLastWriteLost && rows == kChunk ? rows - 1 : rows;
    for (int i = 0; i < a.dk; ++i)
      for (size_t c = 0; c < dv; ++c) {
        float& s = a.state[static_cast<size_t>(i) * dv + c];
        s *= fault == F::kStateNotDecayed                ? 1
             : fault == F::kDecayOfRowBefore && last > 0 ? from_begin[last - 1]
                                                         : from_begin[last];
        for (int j = 0; j < writes; ++j)
          s += (fault == F::kWritesNotDecayed ? 1 : since[last][j]) * row(a.k, j)[i] *
               u[static_cast<size_t>(j) * dv + c];
        // The rest of the panel still holds the chunk before.
        for (int j = rows; fault == F::kWritesOfChunkBefore && begin > 0 && j < kChunk; ++j)
          s += row(a.k, j - kChunk)[i] * u[static_cast<size_t>(j) * dv + c];
      }
  }
}

template <F fault>
void copy(const Tactic& tactic, const GdnArgs& args, Stream& stream) {
  static constexpr cpu::Recurrence kRecurrence = {recur<fault>, [](const GdnProblem&) { return size_t{0}; }};
  GdnArgs a = args;
  Buffer ws(cpu::gdn_workspace(kRecurrence, tactic, a.problem, a.batch->rows, stream.team->members()));
  a.ws = {ws.data(), ws.size()};
  cpu::gdn_run(kRecurrence, tactic, a, stream);
}

template <F fault>
constexpr Fault<GdnOp> named(std::string_view name) {
  return {name, copy<fault>, "cpu_chunked"};
}
constexpr Fault<GdnOp> kFaults[] = {
    named<F::kNone>("chunked_copy"),
    named<F::kBeginMissingForK>("chunked_read_of_k_not_decayed"),
    named<F::kBeginMissingForQ>("chunked_read_of_q_not_decayed"),
    named<F::kSinceCountsTheWrite>("chunked_decay_counts_the_write"),
    named<F::kSinceMissingInWrites>("chunked_writes_read_undecayed"),
    named<F::kSinceMissingInOutputs>("chunked_outputs_read_undecayed"),
    named<F::kSinceByDivision>("chunked_decays_divided"),
    named<F::kOwnWriteNotRead>("chunked_own_write_not_read"),
    named<F::kOnlyRowBefore>("chunked_only_row_before_read"),
    named<F::kOnlyFirstHalf>("chunked_first_half_not_read"),
    named<F::kStateNotDecayed>("chunked_state_not_decayed"),
    named<F::kWritesNotDecayed>("chunked_writes_not_decayed"),
    named<F::kDecayOfRowBefore>("chunked_decay_of_row_before"),
    named<F::kBetaOfVAlone>("chunked_beta_of_v_alone"),
    named<F::kLastWriteLost>("chunked_last_write_lost"),
    named<F::kWritesOfChunkBefore>("chunked_writes_of_chunk_before"),
    named<F::kStateOfFirstChunk>("chunked_state_of_first_chunk"),
    named<F::kWritesBf16>("chunked_writes_bf16"),
    named<F::kKeysBf16>("chunked_keys_bf16"),
    named<F::kStateReadBf16>("chunked_state_read_bf16"),
    named<F::kLastOutputOfPartialChunk>("chunked_last_output_of_partial_chunk"),
};

}  // namespace

std::span<const Fault<GdnOp>> gdn_chunked_faults() { return kFaults; }

}  // namespace mettle::mutants

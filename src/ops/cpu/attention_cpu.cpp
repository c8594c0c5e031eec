// attention, cpu: projections by gemv or gemm (the tactic's method), then each member takes blocks of up to 16 queries
// that share a key/value head and walks their keys 16 at a time.
#include <fmt/format.h>

#include <atomic>

#include "ops/attention.h"
#include "ops/cpu/product.h"

namespace mettle {
namespace {

using cpu::Product;

struct Scratch {
  float* widened = nullptr;
  float* qkv = nullptr;         // [rows, qkv_rows]
  void* core = nullptr;         // [rows, heads * head_dim] as the output product reads it
  int32_t* sequence = nullptr;  // [rows] of the batch's sequences
  uint8_t* panels = nullptr;    // per member
  float* block = nullptr;       // per member: queries, outputs, kernel scratch
  size_t panel_stride = 0, block_stride = 0;
};

struct Plan {
  Product qkv, out;
  Plan(const Tactic& t, const AttentionProblem& p)
      : qkv(cpu::product_of(t, cpu::method_of(t), p.activation, p.qkv_format)),
        out(cpu::product_of(t, cpu::method_of(t), p.activation, p.out_format)) {}
};

Scratch carve(reference::Carver& c, const Plan& plan, const AttentionProblem& p, int rows, int members) {
  const int64_t n = rows, core = int64_t{p.heads} * p.head_dim;
  Scratch s;
  if (!plan.qkv.bf16 && p.activation == Activation::kBf16) s.widened = c.take<float>(n * p.hidden);
  s.qkv = c.take<float>(n * p.qkv_rows());
  s.core = c.take<uint8_t>(n * core * (plan.out.bf16 ? 2 : 4));
  s.sequence = c.take<int32_t>(n);
  s.panel_stride = std::max(plan.qkv.panel_bytes(cpu::shape_of(p.qkv_format, p.qkv_rows(), p.hidden)),
                            plan.out.panel_bytes(cpu::shape_of(p.out_format, p.hidden, core)));
  s.panel_stride = (s.panel_stride + 63) & ~size_t{63};
  s.panels = c.take<uint8_t>(static_cast<int64_t>(s.panel_stride) * members);
  s.block_stride = (static_cast<size_t>(2 * cpu::kMaxQueries * p.head_dim) +
                    cpu::attend_scratch(p.head_dim, p.cache == CacheFormat::kE4M3) + 15) &
                   ~size_t{15};
  s.block = c.take<float>(static_cast<int64_t>(s.block_stride) * members);
  return s;
}

class Run {
 public:
  Run(const Tactic& tactic, const AttentionArgs& a, Stream& stream)
      : a_(a),
        p_(a.problem),
        plan_(tactic, a.problem),
        kernels_(cpu::kernels_of(tactic.isa)),
        tactic_(tactic),
        stream_(stream),
        members_(reference::members_of(stream)) {
    reference::Carver c(a.ws);
    s_ = carve(c, plan_, p_, a.batch->rows, members_);
  }

  void operator()() {
    const int rows = a_.batch->rows;
    const cpu::Inputs inputs{a_.x, s_.widened};
    int index = 0;
    for (const BatchSequence& s : a_.batch->sequences) {
      std::fill_n(s_.sequence + s.first_row, s.q_len, index);
      ++index;
    }
    widen_rows(tactic_, inputs, stream_);
    multiply(plan_.qkv, cpu::tile_matrix(a_.weights->qkv), s_.panels, s_.panel_stride, inputs.rows(plan_.qkv, rows),
             {s_.qkv, p_.qkv_rows()}, stream_);
    reference::for_each(stream_, rows, [&](int64_t row) { append(static_cast<int>(row)); });
    const auto attend = [&](int member) { attend_blocks(member); };
    if (members_ == 1) {
      attend(0);
    } else {
      stream_.team->run(attend);
    }
    const int64_t core = int64_t{p_.heads} * p_.head_dim;
    multiply(plan_.out, cpu::tile_matrix(a_.weights->out), s_.panels, s_.panel_stride,
             cpu::own_rows(s_.core, core, rows), {a_.partial.as<float>(), p_.hidden}, stream_);
  }

 private:
  int head_stride() const { return p_.gate ? 2 * p_.head_dim : p_.head_dim; }
  int group() const { return p_.heads / p_.kv_heads; }
  int position(int row) const {
    const BatchSequence& s = a_.batch->sequences[static_cast<size_t>(s_.sequence[row])];
    return s.ctx_len + row - s.first_row;
  }

  void norm_and_rotate(const FloatArray& weight, const float* cosines, const float* sines, float* head) const {
    const int dim = p_.head_dim, half = p_.rotary_dim / 2;
    if (p_.qk_norm) {
      const float scale = 1.f / std::sqrt(kernels_.dot(head, head, dim) / static_cast<float>(dim) + p_.eps);
      kernels_.normed(head, scale, weight.data(), p_.norm_plus_one ? 1.f : 0.f, head, dim, false);
    }
    kernels_.rotate(head, cosines, sines, half);
  }

  // Norm and rotation of a row's q and k in place; k and v go to the caches.
  void append(int row) const {
    constexpr int kMostPairs = 512;  // supports() holds rotary_dim to it
    float cosines[kMostPairs], sines[kMostPairs];
    const BatchSequence& s = a_.batch->sequences[static_cast<size_t>(s_.sequence[row])];
    const int at = position(row), dim = p_.head_dim;
    for (int i = 0; i < p_.rotary_dim / 2; ++i) {
      const float angle = static_cast<float>(at) * a_.weights->inv_freq[static_cast<size_t>(i)];
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
    float* q = s_.qkv + int64_t{row} * p_.qkv_rows();
    float* k = q + int64_t{p_.heads} * head_stride();
    const float* v = k + int64_t{p_.kv_heads} * dim;
    for (int h = 0; h < p_.heads; ++h) norm_and_rotate(a_.weights->q_norm, cosines, sines, q + h * head_stride());
    for (int h = 0; h < p_.kv_heads; ++h) norm_and_rotate(a_.weights->k_norm, cosines, sines, k + h * dim);
    const int64_t slot = int64_t{s.block_table[at / p_.block_size]} * p_.block_size + at % p_.block_size;
    const int64_t values = int64_t{p_.kv_heads} * dim;
    const bool bf16 = p_.activation == Activation::kBf16;
    if (p_.cache == CacheFormat::kE4M3) {
      kernels_.to_e4m3(k, a_.weights->k_scale, a_.k_cache.as<uint8_t>() + slot * values, values);
      kernels_.to_e4m3(v, a_.weights->v_scale, a_.v_cache.as<uint8_t>() + slot * values, values);
      return;
    }
    const int64_t offset = slot * values * (bf16 ? 2 : 4);
    kernels_.round_to(k, a_.k_cache.as<uint8_t>() + offset, values, bf16, bf16);
    kernels_.round_to(v, a_.v_cache.as<uint8_t>() + offset, values, bf16, bf16);
  }

  // A block of rows with all its heads is one item when there are enough of them, else each key/value head is. Members
  // take the next item when they are free: later rows of a prompt see more keys.
  void attend_blocks(int member) {
    const int rows = std::max(1, cpu::kMaxQueries / group());
    int64_t blocks = 0;
    for (const BatchSequence& s : a_.batch->sequences) blocks += (s.q_len + rows - 1) / rows;
    const bool whole = blocks >= int64_t{4} * members_;
    int64_t item = 0, mine = next_.fetch_add(1, std::memory_order_relaxed);
    for (const BatchSequence& s : a_.batch->sequences)
      for (int row = 0; row < s.q_len; row += rows)
        for (int kv = 0; kv < p_.kv_heads; kv += whole ? p_.kv_heads : 1)
          if (item++ == mine) {
            for (int k = kv; k < (whole ? p_.kv_heads : kv + 1); ++k)
              attend_heads(s, s.first_row + row, std::min(rows, s.q_len - row), k, member);
            mine = next_.fetch_add(1, std::memory_order_relaxed);
          }
  }

  // All queries of a key/value head.
  void attend_heads(const BatchSequence& s, int row, int rows, int kv, int member) const {
    const int heads = std::min(group(), cpu::kMaxQueries);
    for (int head = 0; head < group(); head += heads)
      attend_block(s, row, rows, kv, kv * group() + head, std::min(heads, group() - head), member);
  }

  void attend_block(const BatchSequence& s, int row, int rows, int kv, int head, int heads, int member) const {
    const int dim = p_.head_dim;
    float* q = s_.block + static_cast<size_t>(member) * s_.block_stride;
    float* out = q + cpu::kMaxQueries * dim;
    const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim))) * a_.weights->k_scale;
    int32_t limit[cpu::kMaxQueries];
    int n = 0;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h, ++n) {
        const float* from = s_.qkv + int64_t{row + r} * p_.qkv_rows() + int64_t{head + h} * head_stride();
        kernels_.scaled(from, scale, q + n * dim, dim);
        limit[n] = position(row + r) + 1;
      }
    cpu::AttendArgs args{.queries = n, .head_dim = dim, .q = q, .limit = limit, .max_limit = limit[n - 1]};
    const DType cached = p_.cache_dtype();
    const int64_t start = int64_t{kv} * dim * static_cast<int64_t>(size_of(cached));
    args.k_cache = a_.k_cache.as<uint8_t>() + start;
    args.v_cache = a_.v_cache.as<uint8_t>() + start;
    args.block_table = s.block_table;
    args.block_size = p_.block_size;
    args.key_stride = int64_t{p_.kv_heads} * dim;
    args.block_stride = args.key_stride * p_.block_size;
    args.out = out;
    args.scratch = out + cpu::kMaxQueries * dim;
    (cached == DType::kE4M3   ? kernels_.attend_e4m3
     : cached == DType::kBF16 ? kernels_.attend_bf16
                              : kernels_.attend_f32)(args);
    n = 0;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h, ++n) {
        float* o = out + n * dim;
        for (int d = 0; cached == DType::kE4M3 && d < dim; ++d) o[d] *= a_.weights->v_scale;
        if (p_.gate) {
          kernels_.sigmoid(s_.qkv + int64_t{row + r} * p_.qkv_rows() + int64_t{head + h} * head_stride() + dim, q, dim);
          for (int d = 0; d < dim; ++d) o[d] *= q[d];
        }
        const int64_t at = (int64_t{row + r} * p_.heads + head + h) * dim;
        kernels_.round_to(o, static_cast<uint8_t*>(s_.core) + at * (plan_.out.bf16 ? 2 : 4), dim,
                          p_.activation == Activation::kBf16, plan_.out.bf16);
      }
  }

  const AttentionArgs& a_;
  const AttentionProblem& p_;
  Plan plan_;
  const cpu::Kernels& kernels_;
  const Tactic& tactic_;
  Stream& stream_;
  int members_;
  Scratch s_;
  std::atomic<int64_t> next_{0};  // item of attend_blocks
};

Verdict supports(const AttentionProblem& p, const Device& device) {
  if (p.kv_heads < 1 || p.heads < 1 || p.heads % p.kv_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} query heads, {} kv heads", p.heads, p.kv_heads),
                  "a multiple");
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > std::min(p.head_dim, 1024))
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("rotary {} of {}", p.rotary_dim, p.head_dim),
                  "even, at most the head and 1024");
  return cpu::cpu_supports(device, {{p.qkv_format, p.hidden}, {p.out_format, int64_t{p.heads} * p.head_dim}});
}

}  // namespace

extern const Backend<AttentionOp> attention_cpu = {
    .name = "cpu",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = supports,
    .tactics = [](const AttentionProblem&, const Device& device) { return cpu::isa_method_tactics(device); },
    .workspace =
        [](const Tactic& tactic, const AttentionProblem& p, int rows, int members) {
          reference::Carver c({});
          carve(c, Plan(tactic, p), p, rows, members);
          return c.used();
        },
    .run = [](const Tactic& tactic, const AttentionArgs& args, Stream& stream) { Run(tactic, args, stream)(); },
};

}  // namespace mettle

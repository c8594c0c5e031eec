// attention, cpu_tiled: for prompts. Each member takes tiles of up to 64 queries that share a key/value head (16 rows
// of four heads) and walks their keys 64 at a time, converted once a tile to what the multipliers read. q and the
// probabilities are rounded to bfloat16, as declared: where the processor multiplies pairs of them, a product costs
// half.
#include <algorithm>
#include <atomic>

#include "ops/cpu/attention_around.h"

namespace mettle {
namespace {

// Queries and outputs of a tile, a gate, and what the kernel needs.
size_t own_floats(const AttentionProblem& p) {
  return static_cast<size_t>((2 * cpu::kTileQueries + 1) * cpu::tile_dim(p.head_dim)) +
         cpu::attend_tile_scratch(p.head_dim);
}

class Run {
 public:
  Run(const Tactic& tactic, const AttentionArgs& a, Stream& stream)
      : around_(tactic, a, stream, own_floats(a.problem)), p_(a.problem), a_(a) {
    const cpu::Kernels& kernels = around_.kernels();
    const DType cached = p_.cache_dtype();
    rounds_ = p_.activation == Activation::kBf16;
    pairs_ = kernels.has_bf16 && rounds_;
    attend_ = pairs_ ? (cached == DType::kE4M3 ? kernels.attend_pairs_e4m3 : kernels.attend_pairs_bf16)
              : cached == DType::kE4M3 ? kernels.attend_tile_e4m3
              : cached == DType::kBF16 ? kernels.attend_tile_bf16
                                       : kernels.attend_tile_f32;
  }

  void operator()() {
    around_.begin();
    const auto attend = [&](int member) { attend_tiles(member); };
    if (around_.members() == 1) {
      attend(0);
    } else {
      around_.stream().team->run(attend);
    }
    around_.end();
  }

 private:
  // Members take the next tile when they are free: later rows of a prompt see more keys.
  void attend_tiles(int member) {
    const int group = around_.group(), heads = std::min(group, cpu::kTileQueries),
              rows = std::max(1, cpu::kTileQueries / group);
    int64_t item = 0, mine = next_.fetch_add(1, std::memory_order_relaxed);
    for (const BatchSequence& s : a_.batch->sequences)
      for (int row = 0; row < s.q_len; row += rows)
        for (int kv = 0; kv < p_.kv_heads; ++kv) {
          if (item++ != mine) continue;
          for (int head = 0; head < group; head += heads)
            attend_tile(s, s.first_row + row, std::min(rows, s.q_len - row), kv, kv * group + head,
                        std::min(heads, group - head), member);
          mine = next_.fetch_add(1, std::memory_order_relaxed);
        }
  }

  void attend_tile(const BatchSequence& s, int row, int rows, int kv, int head, int heads, int member) const {
    const int dim = p_.head_dim, wide = cpu::tile_dim(dim);
    float* q = around_.own(member);
    float* out = q + cpu::kTileQueries * wide;
    float* gate = out + cpu::kTileQueries * wide;
    int32_t limit[cpu::kTileQueries];
    int n = 0;
    std::fill_n(q, rows * heads * wide, 0.f);  // both kinds of q: columns behind the head are zero
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h, ++n) {
        void* to = pairs_ ? static_cast<void*>(reinterpret_cast<uint16_t*>(q) + n * wide) : q + n * wide;
        around_.kernels().round_to(around_.query(row + r, head + h), to, dim, rounds_, pairs_);
        limit[n] = around_.position(row + r) + 1;
      }
    cpu::AttendArgs args = around_.over_cache(s, kv);
    args.queries = n;
    args.q = q;
    args.limit = limit;
    args.max_limit = limit[n - 1];
    args.round_p = rounds_;
    args.out = out;
    args.scratch = gate + wide;
    attend_(args);
    n = 0;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h, ++n) around_.finish(row + r, head + h, out + n * wide, gate);
  }

  cpu::AttentionAround around_;
  const AttentionProblem& p_;
  const AttentionArgs& a_;
  bool rounds_ = false, pairs_ = false;
  void (*attend_)(const cpu::AttendArgs&) = nullptr;
  std::atomic<int64_t> next_{0};  // item of attend_tiles
};

}  // namespace

extern const Backend<AttentionOp> attention_cpu_tiled = {
    .name = "cpu_tiled",
    .numerics = {.q = Rounds::kBf16, .p = Rounds::kBf16},
    .layout = Layout::kTile16,
    .supports = cpu::attention_supports,
    .tactics = [](const AttentionProblem&, const Device& device) { return cpu::isa_gemm_tactics(device); },
    .workspace = [](const Tactic& tactic, const AttentionProblem& p, int rows,
                    int members) { return cpu::attention_workspace(tactic, p, rows, members, own_floats(p)); },
    .run = [](const Tactic& tactic, const AttentionArgs& args, Stream& stream) { Run(tactic, args, stream)(); },
};

}  // namespace mettle

// attention, cpu: each member takes blocks of up to 16 queries that share a key/value head and walks their keys 16 at a
// time, where they lie.
#include <algorithm>
#include <atomic>

#include "ops/cpu/attention_around.h"

namespace mettle {
namespace {

// Queries and outputs of a block, and what the kernel needs.
size_t own_floats(const AttentionProblem& p) {
  return static_cast<size_t>(2 * cpu::kMaxQueries * p.head_dim) +
         cpu::attend_scratch(p.head_dim, p.cache == CacheFormat::kE4M3);
}

class Run {
 public:
  Run(const Tactic& tactic, const AttentionArgs& a, Stream& stream)
      : around_(tactic, a, stream, own_floats(a.problem)), p_(a.problem), a_(a) {}

  void operator()() {
    around_.begin();
    const auto attend = [&](int member) { attend_blocks(member); };
    if (around_.members() == 1) {
      attend(0);
    } else {
      around_.stream().team->run(attend);
    }
    around_.end();
  }

 private:
  // A block of rows with all its heads is one item when there are enough of them, else each key/value head is. Members
  // take the next item when they are free: later rows of a prompt see more keys.
  void attend_blocks(int member) {
    const int rows = std::max(1, cpu::kMaxQueries / around_.group());
    int64_t blocks = 0;
    for (const BatchSequence& s : a_.batch->sequences) blocks += (s.q_len + rows - 1) / rows;
    const bool whole = blocks >= int64_t{4} * around_.members();
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
    const int group = around_.group(), heads = std::min(group, cpu::kMaxQueries);
    for (int head = 0; head < group; head += heads)
      attend_block(s, row, rows, kv, kv * group + head, std::min(heads, group - head), member);
  }

  void attend_block(const BatchSequence& s, int row, int rows, int kv, int head, int heads, int member) const {
    const int dim = p_.head_dim;
    float* q = around_.own(member);
    float* out = q + cpu::kMaxQueries * dim;
    cpu::AttendArgs args = around_.over_cache(s, kv);
    int32_t limit[cpu::kMaxQueries];
    int n = 0;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h, ++n) {
        around_.kernels().scaled(around_.query(row + r, head + h), args.scale, q + n * dim, dim);
        limit[n] = around_.position(row + r) + 1;
      }
    args.queries = n;
    args.q = q;
    args.limit = limit;
    args.max_limit = limit[n - 1];
    args.out = out;
    args.scratch = out + cpu::kMaxQueries * dim;
    const cpu::Kernels& kernels = around_.kernels();
    const DType cached = p_.cache_dtype();
    (cached == DType::kE4M3   ? kernels.attend_e4m3
     : cached == DType::kBF16 ? kernels.attend_bf16
                              : kernels.attend_f32)(args);
    n = 0;
    for (int r = 0; r < rows; ++r)
      for (int h = 0; h < heads; ++h, ++n) around_.finish(row + r, head + h, out + n * dim, q);
  }

  cpu::AttentionAround around_;
  const AttentionProblem& p_;
  const AttentionArgs& a_;
  std::atomic<int64_t> next_{0};  // item of attend_blocks
};

}  // namespace

extern const Backend<AttentionOp> attention_cpu = {
    .name = "cpu",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = cpu::attention_supports,
    .tactics = [](const AttentionProblem&, const Device& device) { return cpu::isa_method_tactics(device); },
    .workspace = [](const Tactic& tactic, const AttentionProblem& p, int rows,
                    int members) { return cpu::attention_workspace(tactic, p, rows, members, own_floats(p)); },
    .run = [](const Tactic& tactic, const AttentionArgs& args, Stream& stream) { Run(tactic, args, stream)(); },
};

}  // namespace mettle

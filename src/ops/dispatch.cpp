#include "ops/dispatch.h"

#include <algorithm>

namespace mettle {

int bucket_of(int rows) {
  const auto* it = std::lower_bound(kRowBuckets.begin(), kRowBuckets.end(), rows);
  return static_cast<int>(std::min<std::ptrdiff_t>(it - kRowBuckets.begin(), std::ssize(kRowBuckets) - 1));
}

template <class Op>
size_t Choices<Op>::workspace(const typename Op::Problem& problem, int rows, int team_members) const {
  size_t most = 0;
  for (size_t b = 0; b < by_bucket.size(); ++b) {
    const int in_bucket = b + 1 == by_bucket.size() ? rows : std::min(rows, kRowBuckets[b]);
    const auto needs = [&](const Choice<Op>& c) {
      if (c.backend != nullptr && c.backend->workspace != nullptr)
        most = std::max(most, c.backend->workspace(c.tactic, problem, in_bucket, team_members));
    };
    needs(by_bucket[b]);
    for (const Choice<Op>& c : behind[b]) needs(c);
    if (in_bucket == rows) break;
  }
  return most;
}

template <class Op>
bool Choices<Op>::serves(std::string_view backend) const {
  return std::any_of(by_bucket.begin(), by_bucket.end(),
                     [&](const Choice<Op>& c) { return c.backend != nullptr && c.backend->name == backend; });
}

template <class Op>
bool Choices<Op>::remove(std::string_view backend) {
  Choices without = *this;
  for (size_t b = 0; b < by_bucket.size(); ++b) {
    std::vector<Choice<Op>>& next = without.behind[b];
    std::erase_if(next, [&](const Choice<Op>& c) { return c.backend->name == backend; });
    if (by_bucket[b].backend == nullptr || by_bucket[b].backend->name != backend) continue;
    if (next.empty()) return false;
    without.by_bucket[b] = next.front();
    next.erase(next.begin());
  }
  *this = std::move(without);
  return true;
}

template <class Op>
std::atomic<uint64_t>& call_count() {
  static std::atomic<uint64_t> count{0};
  return count;
}

#define METTLE_FOR_OP(Op)      \
  template struct Choices<Op>; \
  template std::atomic<uint64_t>& call_count<Op>();
METTLE_FOR_OP(EmbedOp)
METTLE_FOR_OP(JoinOp)
METTLE_FOR_OP(LinearOp)
METTLE_FOR_OP(MoeOp)
METTLE_FOR_OP(AttentionOp)
METTLE_FOR_OP(GdnOp)
METTLE_FOR_OP(SampleOp)

}  // namespace mettle

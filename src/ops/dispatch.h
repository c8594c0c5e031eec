// Runs a chosen backend: checks the arguments once, counts the call. Choices are per row bucket and made before
// serving, with what takes over when a backend must go while it serves.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/cuda/profile_range.h"
#include "ops/embed.h"
#include "ops/gdn.h"
#include "ops/join.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/sample.h"

namespace mettle {

// A bucket holds row counts up to its bound; more rows than the last bound use the last bucket.
inline constexpr std::array<int, 7> kRowBuckets = {1, 4, 16, 32, 64, 256, 512};
int bucket_of(int rows);

template <class Op>
struct Choice {
  const Backend<Op>* backend = nullptr;
  Tactic tactic;
};

template <class Op>
struct Choices {
  std::array<Choice<Op>, kRowBuckets.size()> by_bucket;
  // What takes over in each bucket, best first, each backend once: proved, and of the layout that is packed.
  std::array<std::vector<Choice<Op>>, kRowBuckets.size()> behind;
  const Choice<Op>& at(int rows) const { return by_bucket[static_cast<size_t>(bucket_of(rows))]; }
  // Largest workspace of any bucket for up to `rows` rows, whoever serves it.
  size_t workspace(const typename Op::Problem& problem, int rows, int team_members) const;
  bool serves(std::string_view backend) const;  // in any bucket
  // Takes a backend out; where it served the next one does. False, with nothing changed, when a bucket has no other.
  bool remove(std::string_view backend);
};

// Calls of each op since the process started (embed, join, linear, moe, attention, gdn, sample).
template <class Op>
std::atomic<uint64_t>& call_count();

template <class Op>
void run_op(const Choice<Op>& choice, const typename Op::Args& args, Stream& stream) {
  check_args(args);
  call_count<Op>().fetch_add(1, std::memory_order_relaxed);
  const ProfileRange range(Op::kName);
  choice.backend->run(choice.tactic, args, stream);
}

}  // namespace mettle

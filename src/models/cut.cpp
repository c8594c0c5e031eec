#include "models/cut.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/thread_team.h"

namespace mettle {

HeadCut cut_heads(const std::string& what, int groups, int heads, int rank, int ranks) {
  const int per_group = heads / groups;
  if (groups >= ranks) {
    const Span s = share_of(groups, rank, ranks);
    return {{s.begin, s.end}, {s.begin * per_group, s.end * per_group}};
  }
  const int ranks_per_group = ranks % groups == 0 ? ranks / groups : 0;
  if (ranks_per_group == 0 || ranks_per_group > per_group)
    fail(Code::kUnsupported,
         fmt::format("{}: {} ranks must share {} groups of {} heads evenly, at least one head each: they cannot", what,
                     ranks, groups, per_group));
  const int group = rank / ranks_per_group;
  const Span s = share_of(per_group, rank % ranks_per_group, ranks_per_group);
  return {{group, group + 1}, {group * per_group + s.begin, group * per_group + s.end}};
}

Range cut_blocks(const std::string& what, int64_t size, int64_t unit, int rank, int ranks, Share share) {
  const int64_t blocks = (size + unit - 1) / unit;
  if (share == Share::kAtLeastOneBlock && blocks < ranks)
    fail(Code::kUnsupported,
         fmt::format("{}: {} in blocks of {} are {} blocks, fewer than {} ranks", what, size, unit, blocks, ranks));
  const Span s = share_of(blocks, rank, ranks);
  return {std::min(s.begin * unit, size), std::min(s.end * unit, size)};
}

}  // namespace mettle

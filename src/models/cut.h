// How a model is cut for ranks. Each function says which part a rank keeps, or refuses with the numbers.
#pragma once
#include <cstdint>
#include <string>

namespace mettle {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Heads that come in groups around a shared one: query heads around a kv head, value heads around a key head.
struct HeadCut {
  Range groups;  // shared heads this rank holds; replicated when there are fewer of them than ranks
  Range heads;   // heads this rank holds, each of one of these groups
};
// Fails with kUnsupported unless every rank gets whole heads that its groups share evenly.
HeadCut cut_heads(const std::string& what, int groups, int heads, int rank, int ranks);

// A width in blocks of `unit`; the last block may be short. Every rank gets at least one block unless may_be_empty.
enum class Share { kAtLeastOneBlock, kMayBeEmpty };
Range cut_blocks(const std::string& what, int64_t size, int64_t unit, int rank, int ranks, Share share);

}  // namespace mettle

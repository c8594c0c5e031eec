// The BPE model over bytes: token texts, merges, and the encoding of one word (a piece the pre-tokenizer cut).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

// Token texts (raw bytes) by id, and ids by text.
class TokenTable {
 public:
  static constexpr int32_t kMaxId = 1 << 22;

  void reserve(size_t tokens, size_t bytes);
  // `findable`: whether find() may answer with it. False when the id, or the text of a findable token, is taken.
  bool add(int32_t id, std::string_view bytes, bool findable);
  int32_t find(std::string_view bytes) const;  // -1: none
  bool has(int32_t id) const { return id >= 0 && id < size() && entries_[id].present; }
  std::string_view bytes(int32_t id) const;
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }  // highest id + 1

 private:
  struct Entry {
    uint32_t offset = 0;
    uint32_t length : 31 = 0;
    uint32_t present : 1 = 0;
  };
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  void grow(size_t slots);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  size_t used_ = 0;
};

// Buffers of one encoding, and a cache of words met before. Used by one thread at a time.
class BpeScratch {
 public:
  BpeScratch();

 private:
  friend class Bpe;
  void release();

  struct CachedWord {
    char bytes[30];
    uint8_t length;  // 0: empty
    uint8_t count;
    int32_t ids[8];
  };
  std::unique_ptr<CachedWord[]> cache_;
  std::vector<int32_t> ids_;
  std::vector<uint32_t> ranks_;  // of the pair that starts at a symbol
  std::vector<uint32_t> next_, previous_;
  std::vector<uint64_t> heap_;  // rank << 32 | position
};

class Bpe {
 public:
  struct Merge {
    int32_t left, right, result;
  };
  struct Options {
    bool ignore_merges = false;  // a word that is a token as a whole becomes that token
    bool fuse_unknown = false;
    int32_t unknown = -1;  // -1: bytes without a token are dropped
    // Tokens for the byte: one, or those of byte fallback (the character that stands for it has up to two bytes).
    struct Start {
      uint8_t count = 0;  // 0: unknown
      bool fallback = false;
      int32_t ids[2] = {-1, -1};
    };
    std::array<Start, 256> start;
  };

  // `merges` in order of rank; of two for one pair the later counts. `table` must outlive this and hold all ids.
  // `allowed`, when not empty, has one entry an id: ids with 0 are never the result of a merge or of ignore_merges.
  Bpe(const TokenTable& table, const std::vector<Merge>& merges, Options options, std::vector<uint8_t> allowed = {});

  // Appends the ids of `word`, which is not empty. Time is n log n in its length.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Pair {
    uint64_t key = ~uint64_t{0};  // left << 32 | right
    uint32_t rank = 0;
    int32_t result = -1;
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  bool allowed(int32_t id) const { return allowed_.empty() || allowed_[id]; }
  const Pair* pair(int32_t left, int32_t right) const;
  uint32_t rank(int32_t left, int32_t right) const;
  void start(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;

  const TokenTable* table_;
  Options options_;
  std::vector<uint8_t> allowed_;
  std::vector<Pair> pairs_;  // open addressing, a power of two, at most half full
};

}  // namespace mettle

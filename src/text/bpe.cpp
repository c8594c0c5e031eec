#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.h"

namespace mettle {
namespace {

constexpr size_t kCacheSlots = 1 << 14;    // of 64 bytes: 1 MiB a scratch
constexpr size_t kShortWord = 40;          // symbols; above it a heap beats scanning for the lowest rank
constexpr size_t kKeptSymbols = 64 << 10;  // buffers of longer words are given back

uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  const char* p = bytes.data();
  size_t n = bytes.size();
  uint64_t h = n * kFactor, word = 0;
  for (; n >= 8; p += 8, n -= 8) {
    std::memcpy(&word, p, 8);
    h = fold(h ^ word, kFactor);
  }
  word = 0;
  if (n >= 4) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    word = uint64_t{high} << 32 | low;
  } else {
    for (size_t i = 0; i < n; ++i) word |= uint64_t{static_cast<uint8_t>(p[i])} << (8 * i);
  }
  return fold(h ^ word, kFactor ^ 0xD6E8FEB86659FD93u);
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}
size_t pair_slot(uint64_t key) { return fold(key, 0x9E3779B97F4A7C15u); }

}  // namespace

void TokenTable::reserve(size_t tokens, size_t bytes) {
  entries_.reserve(tokens);
  arena_.reserve(bytes);
  grow(std::bit_ceil(tokens * 2 + 16));
}

void TokenTable::grow(size_t slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_.assign(slots, Slot{});
  for (const Slot& s : old) {
    if (s.id < 0) continue;
    size_t i = hash_bytes(bytes(s.id)) & (slots - 1);
    while (slots_[i].id >= 0) i = (i + 1) & (slots - 1);
    slots_[i] = s;
  }
}

bool TokenTable::add(int32_t id, std::string_view bytes, bool findable) {
  CHECK(id >= 0 && id <= kMaxId, "id " + std::to_string(id));
  if (has(id)) return false;
  if (findable) {
    if ((used_ + 1) * 2 > slots_.size()) grow(std::max<size_t>(16, slots_.size() * 2));
    const uint64_t h = hash_bytes(bytes);
    const auto tag = static_cast<uint32_t>(h >> 32);
    size_t i = h & (slots_.size() - 1);
    for (; slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].tag == tag && this->bytes(slots_[i].id) == bytes) return false;
    }
    slots_[i] = {tag, id};
    ++used_;
  }
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  Entry& e = entries_[id];
  e.offset = static_cast<uint32_t>(arena_.size());
  e.length = static_cast<uint32_t>(bytes.size());
  e.present = 1;
  arena_.append(bytes);
  return true;
}

int32_t TokenTable::find(std::string_view bytes) const {
  if (slots_.empty()) return -1;
  const uint64_t h = hash_bytes(bytes);
  const auto tag = static_cast<uint32_t>(h >> 32);
  for (size_t i = h & (slots_.size() - 1); slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].tag == tag && this->bytes(slots_[i].id) == bytes) return slots_[i].id;
  }
  return -1;
}

std::string_view TokenTable::bytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return std::string_view(arena_).substr(entries_[id].offset, entries_[id].length);
}

void BpeScratch::release() {
  ids_ = {};
  ranks_ = next_ = previous_ = {};
  heap_ = {};
}

BpeScratch::BpeScratch() : cache_(new CachedWord[kCacheSlots]()) {}

Bpe::Bpe(const TokenTable& table, const std::vector<Merge>& merges, Options options, std::vector<uint8_t> allowed)
    : table_(&table), options_(options), allowed_(std::move(allowed)) {
  pairs_.resize(std::bit_ceil(merges.size() * 2 + 16));
  const size_t mask = pairs_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    if (!this->allowed(m.result)) continue;
    const uint64_t key = pair_key(m.left, m.right);
    size_t i = pair_slot(key) & mask;
    while (pairs_[i].result >= 0 && pairs_[i].key != key) i = (i + 1) & mask;
    pairs_[i] = {key, static_cast<uint32_t>(rank), m.result};
  }
}

const Bpe::Pair* Bpe::pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = pairs_.size() - 1;
  for (size_t i = pair_slot(key) & mask; pairs_[i].result >= 0; i = (i + 1) & mask) {
    if (pairs_[i].key == key) return &pairs_[i];
  }
  return nullptr;
}

uint32_t Bpe::rank(int32_t left, int32_t right) const {
  const Pair* p = pair(left, right);
  return p ? p->rank : kNone;
}

void Bpe::start(std::string_view word, std::vector<int32_t>& ids) const {
  ids.clear();
  bool unknown = false;  // one waits; as in the reference library, tokens of byte fallback overtake it
  const auto put_unknown = [&] {
    if (unknown) ids.push_back(options_.unknown);
  };
  for (const char c : word) {
    const Options::Start& s = options_.start[static_cast<uint8_t>(c)];
    if (s.count > 0) {
      if (!s.fallback) put_unknown(), unknown = false;
      ids.insert(ids.end(), s.ids, s.ids + s.count);
    } else if (options_.unknown >= 0) {
      if (!options_.fuse_unknown) put_unknown();
      unknown = true;
    }
  }
  put_unknown();
}

// Merges the pair of lowest rank, leftmost first, until none is left; scratch.ids_ becomes the result.
void Bpe::merge_short(BpeScratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  uint32_t ranks[kShortWord];
  size_t n = ids.size();
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    ids[best] = pair(ids[best], ids[best + 1])->result;
    for (size_t i = best + 1; i + 1 < n; ++i) ids[i] = ids[i + 1], ranks[i] = ranks[i + 1];
    --n;
    if (best + 1 < n) ranks[best] = rank(ids[best], ids[best + 1]);
    if (best > 0) ranks[best - 1] = rank(ids[best - 1], ids[best]);
  }
  ids.resize(n);
}

// The same with a heap over a linked list. An entry counts only while its pair still has the rank it was put in with.
void Bpe::merge_long(BpeScratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  std::vector<uint32_t>&ranks = scratch.ranks_, &next = scratch.next_, &previous = scratch.previous_;
  std::vector<uint64_t>& heap = scratch.heap_;
  const auto n = static_cast<uint32_t>(ids.size());
  ranks.resize(n), next.resize(n), previous.resize(n), heap.clear();
  const auto entry = [&](uint32_t at) { return uint64_t{ranks[at]} << 32 | at; };
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1, previous[i] = i - 1;  // n and kNone end the list
    ranks[i] = i + 1 < n ? rank(ids[i], ids[i + 1]) : kNone;
    if (ranks[i] != kNone) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto renew = [&](uint32_t at) {
    ranks[at] = next[at] < n ? rank(ids[at], ids[next[at]]) : kNone;
    if (ranks[at] == kNone) return;
    heap.push_back(entry(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    if (ranks[at] != static_cast<uint32_t>(top >> 32)) continue;
    const uint32_t gone = next[at];
    ids[at] = pair(ids[at], ids[gone])->result;
    ids[gone] = -1;
    ranks[gone] = kNone;
    next[at] = next[gone];
    if (next[at] < n) previous[next[at]] = at;
    renew(at);
    if (previous[at] != kNone) renew(previous[at]);
  }
  std::erase(ids, -1);
}

void Bpe::encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& out) const {
  BpeScratch::CachedWord* slot = nullptr;
  if (word.size() <= sizeof(slot->bytes)) {
    slot = &scratch.cache_[hash_bytes(word) & (kCacheSlots - 1)];
    if (slot->length == word.size() && std::memcmp(slot->bytes, word.data(), word.size()) == 0) {
      out.insert(out.end(), slot->ids, slot->ids + slot->count);
      return;
    }
  }
  std::vector<int32_t>& ids = scratch.ids_;
  const int32_t whole = options_.ignore_merges ? table_->find(word) : -1;
  if (whole >= 0 && allowed(whole)) {
    ids.assign(1, whole);
  } else {
    start(word, ids);
    ids.size() <= kShortWord ? merge_short(scratch) : merge_long(scratch);
  }
  out.insert(out.end(), ids.begin(), ids.end());
  if (slot && ids.size() <= std::size(slot->ids)) {
    std::memcpy(slot->bytes, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), slot->ids);
    slot->length = static_cast<uint8_t>(word.size());
    slot->count = static_cast<uint8_t>(ids.size());
  }
  if (ids.capacity() > kKeptSymbols) scratch.release();
}

}  // namespace mettle

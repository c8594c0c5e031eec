#include "checkpoint/scan.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace mettle {
namespace {

constexpr int64_t kChunk = 4096;

// `bad` must be branch-free and give 0 or 1 in the element's own type: the inner loop then vectorises (no early exit).
template <class T, class Bad>
int64_t find_in(const uint8_t* data, int64_t count, Bad bad) {
  T chunk[kChunk];
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t n = std::min(kChunk, count - at);
    std::memcpy(chunk, data + at * static_cast<int64_t>(sizeof(T)), static_cast<size_t>(n) * sizeof(T));
    T any = 0;
    for (int64_t i = 0; i < n; ++i) any = static_cast<T>(any | bad(chunk[i]));
    if (any == 0) continue;
    for (int64_t i = 0; i < n; ++i)
      if (bad(chunk[i]) != 0) return at + i;
  }
  return -1;
}

}  // namespace

int64_t find_bad_scale(const uint8_t* e4m3, int64_t count) {
  return find_in<uint8_t>(e4m3, count, [](uint8_t c) { return static_cast<uint8_t>(c >= 0x7F); });
}

int64_t find_nan_e4m3(const uint8_t* e4m3, int64_t count) {
  return find_in<uint8_t>(e4m3, count, [](uint8_t c) { return static_cast<uint8_t>((c & 0x7F) == 0x7F); });
}

int64_t find_not_finite_bf16(const uint8_t* bf16, int64_t count) {
  return find_in<uint16_t>(bf16, count, [](uint16_t b) { return static_cast<uint16_t>((b & 0x7F80) == 0x7F80); });
}

int64_t find_not_finite_f32(const uint8_t* f32, int64_t count) {
  return find_in<uint32_t>(f32, count,
                           [](uint32_t b) { return static_cast<uint32_t>((b & 0x7F800000u) == 0x7F800000u); });
}

int64_t find_first(ThreadTeam* team, int64_t (*find)(const uint8_t* data, int64_t count), const uint8_t* data,
                   int64_t count, int64_t element) {
  constexpr int64_t kWorthSharing = int64_t{1} << 20;
  if (team == nullptr || count * element < kWorthSharing) return find(data, count);
  std::mutex mutex;
  int64_t first = -1;
  share_out(team, count, [&](int64_t begin, int64_t end) {
    const int64_t at = find(data + begin * element, end - begin);
    if (at < 0) return;
    const std::lock_guard<std::mutex> lock(mutex);
    if (first < 0 || begin + at < first) first = begin + at;
  });
  return first;
}

}  // namespace mettle

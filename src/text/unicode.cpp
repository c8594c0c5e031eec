#include "text/unicode.h"

#include <cstring>
#include <memory>

namespace mettle::unicode {

extern const uint32_t kClassRuns[];
extern const size_t kClassRunCount;

namespace {

constexpr uint32_t kCodePoints = 0x110000;

struct ClassTable {
  ClassTable() : of(new uint8_t[kCodePoints]) {
    for (size_t i = 0; i < kClassRunCount; ++i) {
      const uint32_t begin = kClassRuns[i] >> 8;
      const uint32_t end = i + 1 < kClassRunCount ? kClassRuns[i + 1] >> 8 : kCodePoints;
      std::memset(of.get() + begin, static_cast<int>(kClassRuns[i] & 0xFF), end - begin);
    }
  }
  std::unique_ptr<uint8_t[]> of;
};

enum class Utf8 { kValid, kInvalid, kUnfinished };
struct Sequence {
  Utf8 state;
  uint32_t bytes;  // of the character, or of the longest prefix of one that stands here (at least 1)
};

// The table of well-formed sequences (Unicode 3.9, table 3-7): the second byte's range depends on the first.
Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {Utf8::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8::kInvalid, 1};
  const uint32_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (uint32_t i = 1; i < need; ++i) {
    if (at + i == text.size()) return {Utf8::kUnfinished, i};
    if (byte(at + i) < low || byte(at + i) > high) return {Utf8::kInvalid, i};
    low = 0x80, high = 0xBF;
  }
  return {Utf8::kValid, need};
}

}  // namespace

const uint8_t* classes() {
  static const ClassTable table;
  return table.of.get();
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  const auto tail = [&](int shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xC0 | code >> 6), tail(0);
  if (code < 0x10000) return put(0xE0 | code >> 12), tail(6), tail(0);
  put(0xF0 | code >> 18), tail(12), tail(6), tail(0);
}

std::optional<size_t> invalid_utf8_at(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (text.size() - at >= 8 && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const Sequence s = sequence_at(text, at);
    if (s.state != Utf8::kValid) return at;
    at += s.bytes;
  }
  return std::nullopt;
}

size_t append_lossy(std::string_view bytes, bool last, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Sequence s = sequence_at(bytes, at);
    if (s.state == Utf8::kUnfinished && !last) return at;
    if (s.state == Utf8::kValid) {
      out.append(bytes, at, s.bytes);
    } else {
      out.append("\xEF\xBF\xBD");
    }
    at += s.bytes;
  }
  return at;
}

}  // namespace mettle::unicode

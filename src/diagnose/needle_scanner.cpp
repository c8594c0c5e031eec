#include "diagnose/needle_scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"

namespace mettle::diagnose {
namespace {

// A byte is one of 64 columns: 0 for bytes of no needle, 63 for those that came too late for one of their own (needles
// are compared byte by byte in the end). Three columns are a key.
constexpr uint32_t kColumnBits = 6, kKeys = 1u << (3 * kColumnBits);

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

}  // namespace

struct NeedleScanner::Tables {
  std::array<uint8_t, 256> column{};
  std::vector<uint64_t> present = std::vector<uint64_t>(kKeys / 64, 0);  // keys that start a needle
  std::vector<uint32_t> first = std::vector<uint32_t>(kKeys + 1, 0);     // per key, into by_key
  // Needles in the order of their keys. Most are told apart by their last byte, before anything else is touched.
  struct Entry {
    uint32_t needle;
    uint32_t text;  // where it begins in `texts`
    uint16_t length;
    char last;
  };
  std::vector<Entry> by_key;
  std::vector<uint64_t> fourth;  // at the first entry of a key: the columns of the bytes that may come next
  std::string texts;             // in lower case, one after the other
  std::array<char, 256> lower{};

  uint32_t key_of(std::string_view s) const {
    uint32_t key = 0;
    for (size_t i = 0; i < 3; ++i) key = key << kColumnBits | column[static_cast<uint8_t>(s[i])];
    return key;
  }
};

NeedleScanner::NeedleScanner(const std::vector<std::string>& needles) : seen_(needles.size(), 0) {
  auto made = std::make_shared<Tables>();
  Tables& t = *made;
  for (size_t c = 0; c < 256; ++c) t.lower[c] = lower(static_cast<char>(c));
  uint8_t next = 1;
  for (const std::string& needle : needles) {
    if (needle.size() < 3) fail(Code::kInternal, fmt::format("needle \"{}\": must have 3 bytes or more", needle));
    if (needle.size() > UINT16_MAX) fail(Code::kInternal, fmt::format("needle: {} bytes are too many", needle.size()));
    t.by_key.push_back({static_cast<uint32_t>(t.by_key.size()), static_cast<uint32_t>(t.texts.size()),
                        static_cast<uint16_t>(needle.size()), lower(needle.back())});
    for (const char c : needle) {
      const char low = lower(c);
      t.texts += low;
      uint8_t& column = t.column[static_cast<uint8_t>(low)];
      if (column == 0) column = next < 63 ? next++ : 63;
      t.column[static_cast<uint8_t>(std::toupper(static_cast<unsigned char>(low)))] = column;
    }
  }
  const auto key_of = [&t](const Tables::Entry& e) { return t.key_of(std::string_view(t.texts).substr(e.text, 3)); };
  for (const Tables::Entry& e : t.by_key) {
    const uint32_t key = key_of(e);
    t.present[key / 64] |= uint64_t{1} << (key % 64);
    ++t.first[key + 1];
  }
  for (size_t key = 0; key < kKeys; ++key) t.first[key + 1] += t.first[key];
  std::stable_sort(t.by_key.begin(), t.by_key.end(),
                   [&](const Tables::Entry& a, const Tables::Entry& b) { return key_of(a) < key_of(b); });
  t.fourth.resize(t.by_key.size(), 0);
  for (const Tables::Entry& e : t.by_key)
    t.fourth[t.first[key_of(e)]] |=
        e.length == 3 ? ~uint64_t{0} : uint64_t{1} << t.column[static_cast<uint8_t>(t.texts[e.text + 3])];
  tables_ = std::move(made);
}

void NeedleScanner::scan(std::string_view line, std::vector<NeedleHit>& hits) {
  ++scan_;
  const uint8_t* column = tables_->column.data();
  const uint64_t* present = tables_->present.data();
  uint32_t key = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    key = (key << kColumnBits | column[static_cast<uint8_t>(line[i])]) & (kKeys - 1);
    if ((present[key / 64] >> (key % 64) & 1) != 0) verify(line, i - 2, key, hits);
  }
}

void NeedleScanner::verify(std::string_view line, size_t start, uint32_t key, std::vector<NeedleHit>& hits) {
  const Tables& t = *tables_;
  const char* at = line.data() + start;
  const size_t room = line.size() - start;
  if (room > 3 && (t.fourth[t.first[key]] >> t.column[static_cast<uint8_t>(at[3])] & 1) == 0) return;
  for (uint32_t k = t.first[key]; k < t.first[key + 1]; ++k) {
    const Tables::Entry& e = t.by_key[k];
    if (e.length > room || t.lower[static_cast<uint8_t>(at[e.length - 1])] != e.last) continue;
    const char* text = t.texts.data() + e.text;
    uint32_t same = 0;
    while (same < e.length && t.lower[static_cast<uint8_t>(at[same])] == text[same]) ++same;
    if (same < e.length || seen_[e.needle] == scan_) continue;
    seen_[e.needle] = scan_;
    hits.push_back({e.needle, static_cast<uint32_t>(start + same)});
  }
}

}  // namespace mettle::diagnose

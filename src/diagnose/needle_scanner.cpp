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
  std::vector<uint32_t> by_key;                                          // needles in the order of their keys
  std::vector<std::string> needles;                                      // in lower case
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
    t.needles.emplace_back();
    for (const char c : needle) {
      const char low = lower(c);
      t.needles.back() += low;
      uint8_t& column = t.column[static_cast<uint8_t>(low)];
      if (column == 0) column = next < 63 ? next++ : 63;
      t.column[static_cast<uint8_t>(std::toupper(static_cast<unsigned char>(low)))] = column;
    }
  }
  for (const std::string& needle : t.needles) {
    const uint32_t key = t.key_of(needle);
    t.present[key / 64] |= uint64_t{1} << (key % 64);
    ++t.first[key + 1];
  }
  for (size_t key = 0; key < kKeys; ++key) t.first[key + 1] += t.first[key];
  t.by_key.resize(t.needles.size());
  for (uint32_t i = 0; i < t.needles.size(); ++i) t.by_key[i] = i;
  std::stable_sort(t.by_key.begin(), t.by_key.end(),
                   [&](uint32_t a, uint32_t b) { return t.key_of(t.needles[a]) < t.key_of(t.needles[b]); });
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
  for (uint32_t k = t.first[key]; k < t.first[key + 1]; ++k) {
    const uint32_t needle = t.by_key[k];
    const std::string& text = t.needles[needle];
    if (seen_[needle] == scan_ || text.size() > line.size() - start) continue;
    size_t same = 0;
    while (same < text.size() && t.lower[static_cast<uint8_t>(line[start + same])] == text[same]) ++same;
    if (same < text.size()) continue;
    seen_[needle] = scan_;
    hits.push_back({needle, static_cast<uint32_t>(start + same)});
  }
}

}  // namespace mettle::diagnose

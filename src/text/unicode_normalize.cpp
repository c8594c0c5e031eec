#include "text/unicode_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"

namespace mettle::unicode {
namespace {

// utf8proc's own ordering of marks moves one mark at a time (quadratic for a run of them), so it only decomposes single
// characters and composes; the stable sort in between is ours.
class Normalizer {
 public:
  explicit Normalizer(Form form) : form_(form) {}

  void append(std::string_view chunk, std::string& out) {
    points_.clear();
    for (size_t at = 0; at < chunk.size();) {
      const Char c = decode(chunk.data() + at);
      at += c.bytes;
      decompose(c.code);
    }
    order_marks();
    if (form_ == Form::kNfc || form_ == Form::kNfkc) compose();
    for (const utf8proc_int32_t p : points_) append_utf8(out, static_cast<uint32_t>(p));
  }

 private:
  void decompose(uint32_t code) {
    const bool compat = form_ == Form::kNfkc || form_ == Form::kNfkd;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
    utf8proc_int32_t parts[32];
    int boundary = UTF8PROC_BOUNDCLASS_START;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 32, options, &boundary);
    CHECK(n >= 0 && n <= 32, "decomposition of one character, got " + std::to_string(n));
    points_.insert(points_.end(), parts, parts + n);
  }

  // A mark that the reference library's NFC does not know stays where it is (see unicode_normalize.h).
  int combining_class(utf8proc_int32_t code) const {
    if (form_ == Form::kNfc && !(classes_[code] & kNotNfc)) return 0;
    return utf8proc_get_property(code)->combining_class;
  }

  void order_marks() {
    for (size_t i = 0; i < points_.size();) {
      size_t end = i;
      while (end < points_.size() && combining_class(points_[end]) != 0) ++end;
      if (end - i > 1) {
        std::stable_sort(points_.begin() + i, points_.begin() + end,
                         [this](auto a, auto b) { return combining_class(a) < combining_class(b); });
      }
      i = end + 1;
    }
  }

  void compose() {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    const auto n = utf8proc_normalize_utf32(points_.data(), static_cast<utf8proc_ssize_t>(points_.size()), options);
    CHECK(n >= 0, "composition, got " + std::to_string(n));
    points_.resize(static_cast<size_t>(n));
  }

  Form form_;
  const uint8_t* classes_ = classes();
  std::vector<utf8proc_int32_t> points_;
};

// A character without kNotNfc is a boundary: nothing before it changes what comes out from it on. So a stretch to
// normalize is one such character and the kNotNfc characters behind it.
std::string nfc(std::string_view text) {
  const uint8_t* classes = unicode::classes();
  Normalizer normalizer(Form::kNfc);
  std::string out;
  size_t done = 0;   // text before it is in out
  size_t start = 0;  // the last boundary seen
  for (size_t at = 0; at < text.size();) {
    // Below U+0300 (lead bytes up to 0xCB) nothing is kNotNfc.
    if (static_cast<uint8_t>(text[at]) < 0xCC) {
      start = at;
      at += static_cast<uint8_t>(text[at]) < 0x80 ? 1 : 2;
      continue;
    }
    Char c = decode(text.data() + at);
    if (!(classes[c.code] & kNotNfc)) {
      start = at;
      at += c.bytes;
      continue;
    }
    if (out.empty()) out.reserve(text.size() + 16);
    size_t end = at + c.bytes;
    while (end < text.size() && (c = decode(text.data() + end), classes[c.code] & kNotNfc)) end += c.bytes;
    out.append(text, done, start - done);
    normalizer.append(text.substr(start, end - start), out);
    done = start = at = end;
  }
  out.append(text, done, text.size() - done);
  return out;
}

}  // namespace

std::string normalize(std::string_view text, Form form) {
  if (form == Form::kNfc) return nfc(text);
  std::string out;
  out.reserve(text.size());
  Normalizer(form).append(text, out);
  return out;
}

}  // namespace mettle::unicode

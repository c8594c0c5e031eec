// The methods of str.
#include <algorithm>

#include "text/jinja_format.h"
#include "text/jinja_methods.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

std::string_view want_text(Runtime& rt, const Value& v, const char* method) {
  if (!v.is_string()) rt.error(std::string(method) + ": must be str, not " + type_name(v));
  return v.str();
}

Int want_int(Runtime& rt, const Value& v, const char* method) {
  if (!v.is_integral()) rt.error(std::string(method) + ": must be int, not " + type_name(v));
  return v.as_int();
}

// A string result is a Markup when self is one.
Value like(Runtime& rt, const Value& self, std::string text) { return rt.text(std::move(text), self.is_markup()); }

template <std::string (*map)(std::string_view)>
Value mapped(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "str method", call, {});
  rt.reserve(self.str().size() * 3);
  return like(rt, self, map(self.str()));
}

template <bool left, bool right>
Value stripped(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "strip", call, {""});
  std::string_view chars;
  const std::string_view* set = nullptr;
  if (a[0] && !a[0]->is_none()) {
    chars = want_text(rt, *a[0], "strip");
    set = &chars;
  }
  rt.walk_bytes(self.str().size() * (1 + chars.size() / 4));
  std::string_view text = self.str();
  if (left) text = strip_left(text, set);
  if (right) text = strip_right(text, set);
  return like(rt, self, std::string(text));
}

// Whether one of the prefixes (a string or a tuple of strings) is there.
template <bool at_end>
Value has_affix(Runtime& rt, const Value& self, Call& call) {
  const char* name = at_end ? "endswith" : "startswith";
  const auto a = bind(rt, name, call, {"", "", ""}, 1);
  Value text = self;
  if (a[1]) text = get_slice(rt, self, *a[1], a[2] ? *a[2] : Value::none(), Value::none());
  const auto matches = [&](const Value& affix) {
    const std::string_view s = want_text(rt, affix, name);
    rt.step();
    rt.walk_bytes(std::min(s.size(), text.str().size()));
    return at_end ? text.str().ends_with(s) : text.str().starts_with(s);
  };
  if (!a[0]->is(Kind::kTuple)) return Value::of(matches(*a[0]));
  for (const Value& affix : a[0]->items()) {
    if (matches(affix)) return Value::of(true);
  }
  return Value::of(false);
}

Value split_on_space(Runtime& rt, const Value& self, Int most, bool from_right) {
  std::vector<Value> out;
  std::string_view rest = self.str();
  if (from_right) {
    rest = strip_right(rest);
    while (!rest.empty() && (most < 0 || Int(out.size()) < most)) {
      size_t begin = rest.size();
      while (begin > 0 && !is_space(last_char(rest.substr(0, begin)))) {
        begin--;
        while (begin > 0 && (uint8_t(rest[begin]) & 0xC0) == 0x80) begin--;
      }
      out.push_back(like(rt, self, std::string(rest.substr(begin))));
      rest = strip_right(rest.substr(0, begin));
    }
    if (!rest.empty()) out.push_back(like(rt, self, std::string(rest)));
    std::reverse(out.begin(), out.end());
    return rt.list(std::move(out));
  }
  rest = strip_left(rest);
  while (!rest.empty() && (most < 0 || Int(out.size()) < most)) {
    size_t end = 0;
    for (size_t at = 0; at < rest.size(); end = at) {
      if (is_space(next_char(rest, at))) break;
    }
    out.push_back(like(rt, self, std::string(rest.substr(0, end))));
    rest = strip_left(rest.substr(end));
  }
  if (!rest.empty()) out.push_back(like(rt, self, std::string(rest)));
  return rt.list(std::move(out));
}

template <bool from_right>
Value split(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "split", call, {"sep", "maxsplit"});
  rt.walk_bytes(self.str().size());
  Int most = a[1] ? want_int(rt, *a[1], "split") : -1;
  if (!a[0] || a[0]->is_none()) return split_on_space(rt, self, most, from_right);
  const std::string_view separator = want_text(rt, *a[0], "split");
  if (separator.empty()) rt.error("split: empty separator");
  std::vector<size_t> cuts;
  const std::string_view text = self.str();
  if (from_right) {
    size_t end = text.size();
    while (most < 0 || Int(cuts.size()) < most) {
      if (end < separator.size()) break;
      // The linear search works forwards; backwards the compared bytes are counted.
      size_t at = end - separator.size() + 1;
      size_t work = 0;
      bool found = false;
      while (at-- > 0) {
        work += 1;
        if (text[at] != separator[0]) continue;
        work += separator.size();
        if (work > 4096) {
          rt.walk_bytes(work);
          work = 0;
        }
        if (text.compare(at, separator.size(), separator) == 0) {
          found = true;
          break;
        }
      }
      rt.walk_bytes(work);
      if (!found) break;
      rt.step();
      cuts.push_back(at);
      end = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t at = 0; most < 0 || Int(cuts.size()) < most; at += separator.size()) {
      at = find_text(text, separator, at);
      if (at == std::string_view::npos) break;
      rt.step();
      cuts.push_back(at);
    }
  }
  std::vector<Value> out;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    out.push_back(like(rt, self, std::string(text.substr(begin, cut - begin))));
    begin = cut + separator.size();
  }
  out.push_back(like(rt, self, std::string(text.substr(begin))));
  return rt.list(std::move(out));
}

Value split_into_lines(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "splitlines", call, {"keepends"});
  rt.walk_bytes(self.str().size());
  rt.check_size(self.str().size() * sizeof(std::string_view));
  std::vector<Value> out;
  for (const std::string_view line : split_lines(self.str(), a[0] && truth(*a[0]))) {
    rt.step();
    out.push_back(like(rt, self, std::string(line)));
  }
  return rt.list(std::move(out));
}

template <bool from_right>
Value partition(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "partition", call, {""}, 1);
  const std::string_view text = self.str(), separator = want_text(rt, *a[0], "partition");
  if (separator.empty()) rt.error("partition: empty separator");
  rt.walk_bytes(text.size());
  size_t at = find_text(text, separator);
  if (from_right && at != std::string_view::npos) {
    for (size_t next = at; next != std::string_view::npos; next = find_text(text, separator, at + 1)) {
      at = next;
      rt.step(1 + separator.size() / 256);
    }
  }
  std::vector<Value> out;
  if (at == std::string_view::npos) {
    out = {like(rt, self, ""), like(rt, self, ""), like(rt, self, "")};
    out[from_right ? 2 : 0] = like(rt, self, std::string(text));
  } else {
    out = {like(rt, self, std::string(text.substr(0, at))), like(rt, self, std::string(separator)),
           like(rt, self, std::string(text.substr(at + separator.size())))};
  }
  return rt.tuple(std::move(out));
}

Value join(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "join", call, {""}, 1);
  std::string out;
  Cursor cursor(rt, *a[0]);
  Value item;
  for (size_t i = 0; cursor.next(item); i++) {
    if (i) out += self.str();
    if (self.is_markup()) {
      out += escaped(rt, item);
    } else {
      if (!item.is_string())
        rt.error("join: sequence item " + std::to_string(i) + ": expected str instance, " + type_name(item) + " found");
      out += item.str();
    }
    rt.check_size(out.size());
  }
  return like(rt, self, std::move(out));
}

Value replace(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "replace", call, {"", "", ""}, 2);
  const std::string_view from = want_text(rt, *a[0], "replace");
  std::string to(want_text(rt, *a[1], "replace"));
  if (self.is_markup()) to = escaped(rt, *a[1]);
  return like(rt, self, replace_text(rt, self.str(), from, to, a[2] ? want_int(rt, *a[2], "replace") : -1));
}

enum class Search { kFind, kIndex, kCount };

template <Search kind, bool from_right>
Value search(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "find", call, {"", "", ""}, 1);
  const std::string_view what = want_text(rt, *a[0], "find");
  const Int size = Int(self.text->chars);
  const auto bound = [&](const Value* v, Int missing) {
    if (!v || v->is_none()) return missing;
    Int i = want_int(rt, *v, "find");
    if (i < 0) i += size;
    return std::clamp<Int>(i, 0, size + 1);
  };
  const Int start = bound(a[1], 0), stop = std::min(bound(a[2], size), size);
  rt.walk_bytes(self.str().size());
  Int found = -1, count = 0;
  if (start <= stop) {
    const size_t begin = byte_offset(self.str(), size_t(start));
    const std::string_view text = self.str().substr(begin, byte_offset(self.str().substr(begin), size_t(stop - start)));
    if (kind == Search::kCount) {
      if (what.empty()) return Value::of_int(stop - start + 1);
      for (size_t at = find_text(text, what); at != std::string_view::npos;
           at = find_text(text, what, at + what.size()))
        count++;
      return Value::of_int(count);
    }
    size_t at = find_text(text, what);
    if (from_right && at != std::string_view::npos) {
      if (what.empty()) at = text.size();
      for (size_t next = at; next != std::string_view::npos && !what.empty(); next = find_text(text, what, at + 1)) {
        at = next;
        rt.step(1 + what.size() / 256);
      }
    }
    if (at != std::string_view::npos) found = start + Int(count_chars(text.substr(0, at)));
  }
  if (kind == Search::kCount) return Value::of_int(0);
  if (kind == Search::kIndex && found < 0) rt.error("index: substring not found");
  return Value::of_int(found);
}

template <bool all>
bool every_char(std::string_view text, bool (*test)(uint32_t)) {
  if (text.empty()) return all;
  for (size_t i = 0; i < text.size();) {
    if (!test(next_char(text, i))) return false;
  }
  return true;
}

template <bool (*test)(uint32_t), bool when_empty = false>
Value all_are(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "str method", call, {});
  rt.walk_bytes(self.str().size());
  return Value::of(every_char<when_empty>(self.str(), test));
}

bool is_alpha(uint32_t c) { return in_class(kAlpha, c); }
bool is_decimal(uint32_t c) { return in_class(kDecimal, c); }
bool is_digit(uint32_t c) { return in_class(kDigit, c); }
bool is_numeric(uint32_t c) { return in_class(kNumeric, c); }
bool is_alnum(uint32_t c) { return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c); }
bool is_printable(uint32_t c) { return in_class(kPrintable, c); }
bool is_ascii(uint32_t c) { return c < 0x80; }

Value is_identifier(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "isidentifier", call, {});
  rt.walk_bytes(self.str().size());
  size_t at = 0;
  if (self.str().empty()) return Value::of(false);
  const uint32_t first = next_char(self.str(), at);
  const auto inside = [](uint32_t c) { return c == '_' || is_alnum(c); };
  return Value::of((first == '_' || is_alpha(first)) && every_char<true>(self.str(), inside));
}

Value is_title(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "istitle", call, {});
  rt.walk_bytes(self.str().size());
  bool cased = false, inside = false;
  for (size_t i = 0; i < self.str().size();) {
    const uint32_t c = next_char(self.str(), i);
    const bool upper = in_class(kUpper, c) || in_class(kTitle, c);
    if (upper && inside) return Value::of(false);
    if (in_class(kLower, c) && !inside) return Value::of(false);
    inside = is_cased(c);
    cased |= inside;
  }
  return Value::of(cased);
}

template <bool upper>
Value has_case(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "str method", call, {});
  rt.walk_bytes(self.str().size());
  return Value::of(has_case_only(self.str(), upper));
}

enum class Side { kLeft, kRight, kBoth };

template <Side text_at>
Value justify(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "center", call, {"", ""}, 1);
  const Int width = want_int(rt, *a[0], "center");
  std::string fill = a[1] ? std::string(want_text(rt, *a[1], "center")) : " ";
  if (self.is_markup() && a[1]) fill = escaped(rt, *a[1]);
  if (count_chars(fill) != 1) rt.error("center: the fill character must be exactly one character long");
  return like(rt, self, pad_text(rt, self.str(), width, fill, text_at == Side::kLeft, text_at == Side::kRight));
}

Value zfill(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "zfill", call, {""}, 1);
  const std::string_view text = self.str();
  const bool sign = !text.empty() && (text[0] == '+' || text[0] == '-');
  const Int width = std::max<Int>(want_int(rt, *a[0], "zfill"), 0) - sign;
  return like(rt, self, std::string(text.substr(0, sign)) + pad_text(rt, text.substr(sign), width, "0", false, true));
}

template <bool suffix>
Value without_affix(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "removeprefix", call, {""}, 1);
  const std::string_view affix = want_text(rt, *a[0], "removeprefix");
  std::string_view text = self.str();
  if (suffix ? text.ends_with(affix) : text.starts_with(affix))
    text = suffix ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  return like(rt, self, std::string(text));
}

Value expand_tabs(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "expandtabs", call, {"tabsize"});
  const Int size = a[0] ? want_int(rt, *a[0], "expandtabs") : 8;
  std::string out;
  size_t column = 0;
  for (const char c : self.str()) {
    if (c == '\t') {
      if (size > 0) {
        const size_t n = size_t(size - Int(column) % size);
        rt.reserve(n);
        rt.check_size(out.size() + n);
        out.append(n, ' ');
        column += n;
      }
      continue;
    }
    out += c;
    column = c == '\n' || c == '\r' ? 0 : column + ((uint8_t(c) & 0xC0) != 0x80);
  }
  return like(rt, self, std::move(out));
}

Value format(Runtime& rt, const Value& self, Call& call) { return brace_format(rt, self, call); }

Value format_map(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "format_map", call, {""}, 1);
  Call named;
  if (!a[0]->is(Kind::kDict)) rt.error(std::string("format_map: must be a mapping, not ") + type_name(*a[0]));
  rt.step(a[0]->dict().entries.size());
  for (const auto& [key, value] : a[0]->dict().entries) {
    if (key.is_string()) named.named.emplace_back(key.str(), value);
  }
  return brace_format(rt, self, named);
}

constexpr MethodEntry kText[] = {
    {"upper", mapped<to_upper>},
    {"lower", mapped<to_lower>},
    {"casefold", mapped<to_folded>},
    {"capitalize", mapped<to_capitalized>},
    {"title", mapped<to_title>},
    {"swapcase", mapped<to_swapped>},
    {"strip", stripped<true, true>},
    {"lstrip", stripped<true, false>},
    {"rstrip", stripped<false, true>},
    {"startswith", has_affix<false>},
    {"endswith", has_affix<true>},
    {"split", split<false>},
    {"rsplit", split<true>},
    {"splitlines", split_into_lines},
    {"partition", partition<false>},
    {"rpartition", partition<true>},
    {"join", join},
    {"replace", replace},
    {"find", search<Search::kFind, false>},
    {"rfind", search<Search::kFind, true>},
    {"index", search<Search::kIndex, false>},
    {"rindex", search<Search::kIndex, true>},
    {"count", search<Search::kCount, false>},
    {"isalpha", all_are<is_alpha>},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"isnumeric", all_are<is_numeric>},
    {"isalnum", all_are<is_alnum>},
    {"isspace", all_are<is_space>},
    {"isprintable", all_are<is_printable, true>},
    {"isascii", all_are<is_ascii, true>},
    {"isidentifier", is_identifier},
    {"istitle", is_title},
    {"islower", has_case<false>},
    {"isupper", has_case<true>},
    {"center", justify<Side::kBoth>},
    {"ljust", justify<Side::kLeft>},
    {"rjust", justify<Side::kRight>},
    {"zfill", zfill},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"expandtabs", expand_tabs},
    {"format", format},
    {"format_map", format_map},
};

}  // namespace

std::span<const MethodEntry> text_methods() { return kText; }

}  // namespace mettle::jinja

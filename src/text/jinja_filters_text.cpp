// Filters on text: case, white space, joining, escaping, JSON.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

Int want_int(Runtime& rt, const Value& v, const char* filter) {
  if (v.is_undefined()) rt.undefined_error(v);
  if (!v.is_integral()) rt.error(std::string(filter) + ": must be int, not " + type_name(v));
  return v.as_int();
}

template <std::string (*map)(std::string_view)>
Value mapped(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "filter", call, {});
  const Value text = soft_text(rt, v);
  rt.reserve(text.str().size() * 3);
  return rt.text(map(text.str()), text.is_markup());
}

// Unlike str.title, words begin behind white space and brackets only.
Value title(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "title", call, {});
  const Value text = soft_text(rt, v);
  rt.reserve(text.str().size() * 3);
  const auto is_gap = [](uint32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::string out;
  const std::string_view s = text.str();
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const bool gap = is_gap(next_char(s, i));
    const size_t second = i;
    for (size_t next = i; next < s.size() && is_gap(next_char(s, next)) == gap; i = next) {
    }
    out += gap ? std::string(s.substr(begin, i - begin))
               : to_upper(s.substr(begin, second - begin)) + to_lower(s.substr(second, i - second));
  }
  return rt.text(std::move(out));
}

Value trim(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "trim", call, {"chars"});
  const Value text = soft_text(rt, v);
  std::string_view chars;
  const std::string_view* set = nullptr;
  if (a[0] && !a[0]->is_none()) {
    if (!a[0]->is_string()) rt.error(std::string("trim: chars must be str, not ") + type_name(*a[0]));
    chars = a[0]->str();
    set = &chars;
  }
  rt.walk_bytes(text.str().size() * (1 + chars.size() / 4));
  return rt.text(std::string(strip_right(strip_left(text.str(), set), set)), text.is_markup());
}

Value replace(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "replace", call, {"old", "new", "count"}, 2);
  const Int count = a[2] && !a[2]->is_none() ? want_int(rt, *a[2], "replace") : -1;
  return rt.text(replace_text(rt, to_str(rt, v), to_str(rt, *a[0]), to_str(rt, *a[1]), count));
}

Value join(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "join", call, {"d", "attribute"});
  const std::string between = a[0] ? to_str(rt, *a[0]) : "";
  std::string out;
  Cursor cursor(rt, v);
  Value item;
  for (bool first = true; cursor.next(item); first = false) {
    if (!first) out += between;
    if (a[1] && !a[1]->is_none()) item = get_path(rt, item, *a[1]);
    if (item.is_string()) {
      rt.reserve(out.size() / 64 + item.str().size());
      out += item.str();
    } else {
      out += to_str(rt, item);
    }
    rt.check_size(out.size());
  }
  return rt.text(std::move(out));
}

Value indent(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "indent", call, {"width", "first", "blank"});
  if (v.is_undefined()) rt.undefined_error(v);
  if (!v.is_string()) rt.error(std::string("indent: must be str, not ") + type_name(v));
  std::string pad(4, ' ');
  if (a[0] && a[0]->is_string()) {
    pad = a[0]->str();
  } else if (a[0]) {
    const Int width = want_int(rt, *a[0], "indent");
    if (width > 1 << 20) rt.error("indent: width must be at most 1048576, got " + int_text(width));
    pad.assign(size_t(std::max<Int>(width, 0)), ' ');
  }
  const bool first = a[1] && truth(*a[1]), blank = a[2] && truth(*a[2]);
  rt.walk_bytes(v.str().size());
  rt.check_size(v.str().size() * sizeof(std::string_view));
  const std::string text = std::string(v.str()) + "\n";
  std::string out = first ? pad : "";
  bool begun = false;
  for (const std::string_view line : split_lines(text, false)) {
    if (begun) {
      out += '\n';
      if (blank || !line.empty()) out += pad;
    }
    begun = true;
    out += line;
    rt.step(1 + pad.size() / 256);
    rt.check_size(out.size());
  }
  return rt.text(std::move(out), v.is_markup());
}

Value center(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "center", call, {"width"});
  const Value text = soft_text(rt, v);
  const Int width = a[0] ? want_int(rt, *a[0], "center") : 80;
  return rt.text(pad_text(rt, text.str(), width, " ", false, false), text.is_markup());
}

Value string(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "string", call, {});
  return soft_text(rt, v);
}

Value safe(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "safe", call, {});
  return v.is_markup() ? v : rt.text(to_str(rt, v), true);
}

Value escape(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "escape", call, {});
  return v.is_markup() ? v : rt.text(escaped(rt, v), true);
}

Value force_escape(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "forceescape", call, {});
  rt.walk_bytes(v.is_string() ? v.str().size() : 0);
  return rt.text(escape_html(to_str(rt, v)), true);
}

Value format(Runtime& rt, const Value& v, Call& call) {
  if (!call.args.empty() && !call.named.empty())
    rt.error("format: can't handle positional and keyword arguments at the same time");
  const Value text = soft_text(rt, v);
  if (call.named.empty()) return percent_format(rt, text, rt.tuple(call.args));
  Dict* named = nullptr;
  const Value values = rt.dict(&named);
  for (const auto& [name, value] : call.named) dict_set(rt, *named, rt.text(name), value);
  return percent_format(rt, text, values);
}

Value truncate(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "truncate", call, {"length", "killwords", "end", "leeway"});
  if (v.is_undefined()) rt.undefined_error(v);
  const auto bounded = [](Int i) { return std::clamp<Int>(i, INT64_MIN, INT64_MAX); };  // their sums stay in range
  const Int most = bounded(a[0] ? want_int(rt, *a[0], "truncate") : 255);
  const Value end = a[2] ? *a[2] : rt.text("...");
  const Int leeway = bounded(a[3] && !a[3]->is_none() ? want_int(rt, *a[3], "truncate") : 5);
  if (!v.is_string() || !end.is_string())
    rt.error(std::string("truncate: must be str, not ") + type_name(v.is_string() ? end : v));
  const Int room = most - Int(end.text->chars);
  if (room < 0 || leeway < 0)
    rt.error("truncate: length must be at least that of the end, and leeway not negative, got " + int_text(most) +
             " and " + int_text(leeway));
  if (Int(v.text->chars) <= most + leeway) return v;
  std::string_view kept = v.str().substr(0, byte_offset(v.str(), size_t(room)));
  if (!(a[1] && truth(*a[1]))) kept = kept.substr(0, kept.rfind(' '));
  rt.walk_bytes(v.str().size());
  return rt.text(std::string(kept) + std::string(end.str()), v.is_markup());
}

Value word_count(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "wordcount", call, {});
  const Value text = soft_text(rt, v);
  rt.walk_bytes(text.str().size() * 4);
  Int words = 0;
  bool inside = false;
  for (size_t i = 0; i < text.str().size();) {
    const uint32_t c = next_char(text.str(), i);
    const bool word = c == '_' || in_class(kAlpha, c) || in_class(kNumeric, c);
    words += word && !inside;
    inside = word;
  }
  return Value::of_int(words);
}

std::string quote_url(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
    constexpr char kDigits[] = "0123456789ABCDEF";
    if (plain)
      out += c;
    else if (c == ' ' && query)
      out += '+';
    else
      out += {'%', kDigits[uint8_t(c) >> 4], kDigits[uint8_t(c) & 15]};
  }
  return out;
}

Value url_encode(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "urlencode", call, {});
  if (v.is_string() || !is_iterable(v)) {
    const std::string text = to_str(rt, v);
    rt.reserve(text.size() * 3);
    return rt.text(quote_url(text, false));
  }
  std::string out;
  Cursor cursor(rt, v);
  Value item;
  size_t at = 0;
  for (bool first = true; cursor.next(item); first = false) {
    std::vector<Value> pair;
    if (v.is(Kind::kDict)) {
      const auto& entry = v.dict().entries[at++];  // not by its key: NaN is a key that is never found
      pair = {entry.first, entry.second};
    } else {
      pair = collect(rt, item);
    }
    if (pair.size() != 2) rt.error("urlencode: needs pairs, got " + std::to_string(pair.size()) + " values");
    if (!first) out += '&';
    out += quote_url(to_str(rt, pair[0]), true) + "=" + quote_url(to_str(rt, pair[1]), true);
    rt.check_size(out.size());
  }
  return rt.text(std::move(out));
}

// transformers' own: json.dumps without escapes for HTML.
Value json(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "tojson", call, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = a[0] && truth(*a[0]);
  style.sort_keys = a[3] && truth(*a[3]);
  if (a[1] && !a[1]->is_none()) {
    style.indented = true;
    style.item_separator = ",";
    if (a[1]->is_string()) {
      style.indent = a[1]->str();
    } else {
      const Int width = want_int(rt, *a[1], "tojson");
      if (width > 1000) rt.error("tojson: indent must be at most 1000, got " + int_text(width));
      style.indent.assign(size_t(std::max<Int>(width, 0)), ' ');
    }
  }
  if (a[2] && !a[2]->is_none()) {
    const std::vector<Value> pair = collect(rt, *a[2]);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      rt.error("tojson: separators must be two strings, got " + to_repr(rt, *a[2]));
    style.item_separator = pair[0].str();
    style.key_separator = pair[1].str();
  }
  return rt.text(to_json(rt, v, style));
}

constexpr FilterEntry kFilters[] = {
    {"upper", mapped<to_upper>},
    {"lower", mapped<to_lower>},
    {"capitalize", mapped<to_capitalized>},
    {"title", title},
    {"trim", trim},
    {"replace", replace},
    {"join", join},
    {"indent", indent},
    {"center", center},
    {"string", string},
    {"safe", safe},
    {"e", escape},
    {"escape", escape},
    {"forceescape", force_escape},
    {"format", format},
    {"truncate", truncate},
    {"wordcount", word_count},
    {"urlencode", url_encode},
    {"tojson", json},
};

}  // namespace

std::span<const FilterEntry> text_filters() { return kFilters; }

}  // namespace mettle::jinja

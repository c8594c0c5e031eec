#include "text/jinja_print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_operators.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

void append_hex(std::string& out, const char* form, uint32_t c) {
  char buffer[16];
  out.append(buffer, size_t(std::snprintf(buffer, sizeof buffer, form, c)));
}

void append_repr(Runtime& rt, std::string& out, const Value& v);

template <class Items, class Each>
void append_joined(Runtime& rt, std::string& out, const Items& items, const Each& each) {
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ", ";
    first = false;
    each(item);
    rt.check_size(out.size());
  }
}

void append_dict(Runtime& rt, std::string& out, const Dict& dict) {
  out += '{';
  append_joined(rt, out, dict.entries, [&](const auto& e) {
    append_repr(rt, out, e.first);
    out += ": ";
    append_repr(rt, out, e.second);
  });
  out += '}';
}

void append_view(Runtime& rt, std::string& out, const DictView& view) {
  using Part = DictView::Part;
  out += view.part == Part::kKeys ? "dict_keys([" : view.part == Part::kValues ? "dict_values([" : "dict_items([";
  append_joined(rt, out, view.dict->entries, [&](const auto& e) {
    if (view.part == Part::kItems) out += '(';
    if (view.part != Part::kValues) append_repr(rt, out, e.first);
    if (view.part == Part::kItems) out += ", ";
    if (view.part != Part::kKeys) append_repr(rt, out, e.second);
    if (view.part == Part::kItems) out += ')';
  });
  out += "])";
}

void append_repr(Runtime& rt, std::string& out, const Value& v) {
  const auto deeper = rt.enter_value();
  rt.step();
  switch (v.kind) {
    case Kind::kUndefined:
      out += "Undefined";
      break;
    case Kind::kNone:
      out += "None";
      break;
    case Kind::kBool:
      out += v.boolean ? "True" : "False";
      break;
    case Kind::kInt:
      out += int_text(v.integer);
      break;
    case Kind::kFloat:
      out += float_text(v.number);
      break;
    case Kind::kString:
      rt.walk_bytes(v.str().size());
      rt.check_size(out.size() + v.str().size());
      out += v.text->markup ? "Markup(" + text_repr(v.str()) + ")" : text_repr(v.str());
      break;
    case Kind::kList:
    case Kind::kTuple:
      out += v.is(Kind::kList) ? '[' : '(';
      append_joined(rt, out, v.items(), [&](const Value& item) { append_repr(rt, out, item); });
      if (v.is(Kind::kTuple) && v.items().size() == 1) out += ',';
      out += v.is(Kind::kList) ? ']' : ')';
      break;
    case Kind::kDict:
      append_dict(rt, out, v.dict());
      break;
    case Kind::kDictView:
      append_view(rt, out, v.view());
      break;
    case Kind::kRange: {
      const Range& r = v.range();
      out += "range(" + int_text(r.start) + ", " + int_text(r.stop);
      if (r.step != 1) out += ", " + int_text(r.step);
      out += ')';
      break;
    }
    case Kind::kNamespace:
      out += "<Namespace ";
      append_dict(rt, out, v.space().attributes);
      out += '>';
      break;
    case Kind::kIterator:
      out += "<" + std::string(v.iterator().type_name) + " object>";
      break;
    case Kind::kCallable:
      out += v.callable().name();
      break;
  }
}

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style) {}

  void write(const Value& v) {
    const auto deeper = rt_.enter_value();
    rt_.step();
    rt_.check_size(out.size());
    switch (v.kind) {
      case Kind::kNone:
        out += "null";
        break;
      case Kind::kBool:
        out += v.boolean ? "true" : "false";
        break;
      case Kind::kInt:
        out += int_text(v.integer);
        break;
      case Kind::kFloat:
        out += number(v.number);
        break;
      case Kind::kString:
        string(v.str());
        break;
      case Kind::kList:
      case Kind::kTuple:
        array(v.items());
        break;
      case Kind::kDict:
        object(v.dict());
        break;
      default:
        rt_.error(std::string("tojson: an object of type ") + type_name(v) + " is not JSON serializable");
    }
  }

  std::string out;

 private:
  static std::string number(double f) {
    if (std::isnan(f)) return "NaN";
    if (std::isinf(f)) return f > 0 ? "Infinity" : "-Infinity";
    return float_text(f);
  }

  void string(std::string_view text) {
    rt_.walk_bytes(text.size());
    rt_.check_size(out.size() + text.size());
    out += '"';
    for (size_t i = 0; i < text.size();) {
      const uint32_t c = next_char(text, i);
      switch (c) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        case '\f':
          out += "\\f";
          break;
        case '\b':
          out += "\\b";
          break;
        default:
          if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000)) {
            append_hex(out, "\\u%04x", c);
          } else if (style_.ascii && c >= 0x10000) {
            append_hex(out, "\\u%04x", 0xD800 + ((c - 0x10000) >> 10));
            append_hex(out, "\\u%04x", 0xDC00 + ((c - 0x10000) & 0x3FF));
          } else {
            append_char(out, c);
          }
      }
    }
    out += '"';
  }

  void line() {
    if (!style_.indented) return;
    out += '\n';
    rt_.check_size(out.size() + level_ * style_.indent.size());
    for (size_t i = 0; i < level_; i++) out += style_.indent;
  }

  void array(const std::vector<Value>& items) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    level_++;
    for (size_t i = 0; i < items.size(); i++) {
      if (i) out += style_.item_separator;
      line();
      write(items[i]);
    }
    level_--;
    line();
    out += ']';
  }

  std::string key_text(const Value& key) {
    switch (key.kind) {
      case Kind::kString:
        return std::string(key.str());
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.boolean ? "true" : "false";
      case Kind::kInt:
        return int_text(key.integer);
      case Kind::kFloat:
        return number(key.number);
      default:
        rt_.error(std::string("tojson: keys must be str, int, float, bool or None, got ") + type_name(key));
    }
  }

  void object(const Dict& dict) {
    if (dict.entries.empty()) {
      out += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& e : dict.entries) entries.push_back(&e);
    if (style_.sort_keys) {
      rt_.step(entries.size());
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return less(rt_, a->first, b->first); });
    }
    out += '{';
    level_++;
    bool first = true;
    for (const auto* e : entries) {
      if (!first) out += style_.item_separator;
      first = false;
      line();
      string(key_text(e->first));
      out += style_.key_separator;
      write(e->second);
    }
    level_--;
    line();
    out += '}';
  }

  Runtime& rt_;
  const JsonStyle& style_;
  size_t level_ = 0;
};

}  // namespace

const char* type_name(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return v.text->markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView:
      return v.view().part == DictView::Part::kKeys     ? "dict_keys"
             : v.view().part == DictView::Part::kValues ? "dict_values"
                                                        : "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return v.iterator().type_name;
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return "function";
  }
  return "object";
}

std::string int_text(Int i) {
  char buffer[48];
  char* at = buffer + sizeof buffer;
  unsigned __int128 rest = i < 0 ? -static_cast<unsigned __int128>(i) : static_cast<unsigned __int128>(i);
  do {
    *--at = char('0' + int(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (i < 0) *--at = '-';
  return std::string(at, buffer + sizeof buffer);
}

std::string float_text(double f) {
  if (std::isnan(f)) return "nan";
  if (std::isinf(f)) return f > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, std::abs(f), std::chars_format::scientific).ptr;
  std::string_view shortest(buffer, size_t(end - buffer));  // d.ddde+XX
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* first = buffer + e + 1;
  std::from_chars(*first == '+' ? first + 1 : first, end, exponent);
  std::string digits(1, shortest[0]);
  if (e > 2) digits += shortest.substr(2, e - 2);
  std::string out = std::signbit(f) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    std::snprintf(buffer, sizeof buffer, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + buffer;
  }
  if (exponent < 0) return out + "0." + std::string(size_t(-exponent - 1), '0') + digits;
  const size_t whole = size_t(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string to_str(Runtime& rt, const Value& v) {
  if (v.is_string()) {
    rt.reserve(v.str().size());
    return std::string(v.str());
  }
  if (v.is_undefined()) return {};
  return to_repr(rt, v);
}

std::string to_repr(Runtime& rt, const Value& v) {
  std::string out;
  append_repr(rt, out, v);
  return out;
}

std::string text_repr(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const uint32_t c = next_char(text, i);
    if (c == uint32_t(quote) || c == '\\') {
      out += '\\';
      out += char(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x7F ? c >= 0x20 : in_class(kPrintable, c)) {
      append_char(out, c);
    } else {
      append_hex(out, c <= 0xFF ? "\\x%02x" : c <= 0xFFFF ? "\\u%04x" : "\\U%08x", c);
    }
  }
  return out + quote;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value soft_text(Runtime& rt, const Value& v) { return v.is_string() ? v : rt.text(to_str(rt, v)); }

std::string escaped(Runtime& rt, const Value& v) {
  if (v.is_markup()) return to_str(rt, v);
  const std::string plain = to_str(rt, v);
  rt.reserve(plain.size() * 5);
  return escape_html(plain);
}

std::string to_json(Runtime& rt, const Value& v, const JsonStyle& style) {
  JsonWriter writer(rt, style);
  writer.write(v);
  return std::move(writer.out);
}

}  // namespace mettle::jinja

#include <algorithm>

#include "text/jinja_format.h"
#include "text/jinja_format_spec.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace mettle::jinja {
namespace {

class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, const Call& call, bool escape) : rt_(rt), call_(call), escape_(escape) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 2) rt_.error("format: max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at++];
      if (c != '{' && c != '}') {
        out += c;
        continue;
      }
      if (at < text.size() && text[at] == c) {
        out += c;
        at++;
        continue;
      }
      if (c == '}') rt_.error("format: single '}' encountered in format string");
      const size_t begin = at;
      int open = 1, brackets = 0;
      for (; at < text.size(); at++) {
        if (text[at] == '[') brackets++;
        if (text[at] == ']') brackets = std::max(0, brackets - 1);
        open += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
        if (open == 0) break;
      }
      if (open) rt_.error("format: expected '}' before end of string");
      out += field(text.substr(begin, at++ - begin), depth);
      rt_.check_size(out.size());
    }
    return out;
  }

 private:
  std::string field(std::string_view text, int depth) {
    rt_.step();
    std::string_view spec, name = text;
    char conversion = 0;
    size_t end = 0;
    for (bool bracket = false; end < text.size(); end++) {
      if (text[end] == '[') bracket = true;
      if (text[end] == ']') bracket = false;
      if (!bracket && (text[end] == ':' || text[end] == '!')) break;
    }
    name = text.substr(0, end);
    if (end < text.size() && text[end] == '!') {
      if (end + 1 >= text.size()) rt_.error("format: end of string while looking for conversion specifier");
      conversion = text[end + 1];
      end += 2;
      if (end < text.size() && text[end] != ':') rt_.error("format: expected ':' after conversion specifier");
    }
    if (end < text.size()) spec = text.substr(end + 1);
    Value v = lookup(name);
    const std::string expanded =
        spec.find_first_of("{}") == std::string_view::npos ? std::string(spec) : run(spec, depth + 1);
    if (conversion == 'r')
      v = rt_.text(to_repr(rt_, v));
    else if (conversion == 'a')
      v = rt_.text(ascii_only(to_repr(rt_, v)));
    else if (conversion == 's')
      v = rt_.text(to_str(rt_, v));
    else if (conversion)
      rt_.error("format: unknown conversion specifier " + code_name(conversion));
    if (escape_ && v.is_markup()) {
      if (!expanded.empty()) rt_.error("unsupported format specification for Markup");
      return std::string(v.str());
    }
    const std::string out = format_value(rt_, v, expanded);
    return escape_ ? escape_html(out) : out;
  }

  static bool is_number(std::string_view s) {
    return !s.empty() && s.find_first_not_of("0123456789") == std::string_view::npos;
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, end);
    Value v;
    if (first.empty() || is_number(first)) {
      if (first.empty() ? manual_ : numbered_)
        rt_.error("format: cannot mix automatic field numbering and manual specification");
      (first.empty() ? numbered_ : manual_) = true;
      size_t at = 0;
      const size_t i = first.empty() ? next_++ : read_number(rt_, first, at);
      if (i >= call_.args.size()) rt_.error("format: replacement index " + std::to_string(i) + " out of range");
      v = call_.args[i];
    } else {
      rt_.walk_items(call_.named.size());
      const Value* found = call_.find(first);
      if (!found) rt_.error("format: the key " + text_repr(first) + " is missing");
      v = *found;
    }
    for (size_t at = end; at < name.size();) {
      rt_.step();
      if (name[at] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
        if (stop == at + 1) rt_.error("format: empty attribute in format string");
        v = get_attribute(rt_, v, name.substr(at + 1, stop - at - 1));
        at = stop;
      } else if (name[at] == '[') {
        const size_t stop = name.find(']', at);
        if (stop == std::string_view::npos) rt_.error("format: missing ']' in format string");
        const std::string_view key = name.substr(at + 1, stop - at - 1);
        if (key.empty()) rt_.error("format: empty attribute in format string");
        size_t digits = 0;
        v = get_item(rt_, v,
                     is_number(key) ? Value::of_int(Int(read_number(rt_, key, digits))) : rt_.text(std::string(key)));
        at = stop + 1;
      } else {
        rt_.error("format: only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return v;
  }

  Runtime& rt_;
  const Call& call_;
  bool escape_;
  bool numbered_ = false, manual_ = false;
  size_t next_ = 0;
};

}  // namespace

Value brace_format(Runtime& rt, const Value& text, const Call& call) {
  rt.walk_bytes(text.str().size());
  return rt.text(BraceFormatter(rt, call, text.is_markup()).run(text.str(), 1), text.is_markup());
}

}  // namespace mettle::jinja

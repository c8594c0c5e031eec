#include <algorithm>
#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_format_spec.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, const Value& text, const Value& values)
      : rt_(rt), text_(text.str()), values_(values), escape_(text.is_markup()) {}

  std::string run() {
    std::string out;
    for (size_t at = 0; at < text_.size();) {
      const size_t percent = std::min(text_.find('%', at), text_.size());
      out += text_.substr(at, percent - at);
      at = percent;
      if (at < text_.size()) {
        at++;
        convert(out, at);
      }
      rt_.check_size(out.size());
    }
    const bool mapping = values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kNamespace);
    if (values_.is(Kind::kTuple) ? used_ < values_.items().size() : used_ == 0 && !by_name_ && !mapping)
      rt_.error("not all arguments converted during string formatting");
    return out;
  }

 private:
  Value take() {
    if (values_.is(Kind::kTuple)) {
      if (used_ >= values_.items().size()) rt_.error("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++ > 0) rt_.error("not enough arguments for format string");
    return values_;
  }

  size_t number_or_star(size_t& at, bool& negative) {
    if (at < text_.size() && text_[at] == '*') {
      at++;
      const Value v = take();
      if (!v.is_integral()) rt_.error("* wants int");
      if (v.as_int() > 1 << 30 || v.as_int() < -(1 << 30)) rt_.error("format: the width or precision is too big");
      negative = v.as_int() < 0;
      return size_t(negative ? -v.as_int() : v.as_int());
    }
    return read_number(rt_, text_, at);
  }

  void convert(std::string& out, size_t& at) {
    Value value;
    bool named = false;
    if (at < text_.size() && text_[at] == '(') {
      if (!values_.is(Kind::kDict)) rt_.error("format requires a mapping");
      const size_t begin = ++at;
      for (int depth = 1; at < text_.size(); at++) {
        depth += text_[at] == '(' ? 1 : text_[at] == ')' ? -1 : 0;
        if (depth == 0) break;
      }
      if (at >= text_.size()) rt_.error("incomplete format key");
      const std::string_view key = text_.substr(begin, at++ - begin);
      const Value* found = values_.dict().find(key);
      if (!found) rt_.error("the format key " + text_repr(key) + " is missing");
      value = *found;
      named = by_name_ = true;
    }
    Spec spec;
    bool zero = false, left = false;
    for (; at < text_.size(); at++) {
      const char c = text_[at];
      if (c == '-')
        left = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else if (c == '0')
        zero = true;
      else
        break;
    }
    bool negative = false;
    spec.width = number_or_star(at, negative);
    left |= negative;
    if (at < text_.size() && text_[at] == '.') {
      at++;
      negative = false;
      const size_t precision = number_or_star(at, negative);
      spec.precision = negative ? 0 : int(precision);
    }
    while (at < text_.size() && (text_[at] == 'h' || text_[at] == 'l' || text_[at] == 'L')) at++;
    if (at >= text_.size()) rt_.error("incomplete format");
    spec.type = text_[at++];
    spec.align = left ? '<' : '>';
    if (spec.type == '%') {
      out += '%';
      return;
    }
    if (!named) value = take();
    out += converted(value, spec, zero && !left);
  }

  std::string converted(const Value& v, Spec spec, bool zero) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text = spec.type == 's' ? to_str(rt_, v) : to_repr(rt_, v);
        if (spec.type == 'a') text = ascii_only(text);
        if (escape_ && !(spec.type == 's' && v.is_markup())) text = escape_html(text);
        if (spec.precision >= 0) text.resize(byte_offset(text, size_t(spec.precision)));
        return pad(rt_, "", text, spec, '>');
      }
      case 'c': {
        std::string c;
        if (v.is_string() && v.text->chars == 1)
          c = v.str();
        else if (v.is_integral())
          c = format_int(rt_, v.as_int(), v, Spec{.type = 'c'});
        else
          rt_.error("%c requires int or char");
        return pad(rt_, "", c, spec, '>');
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return integer(v, spec, zero);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (v.is_undefined()) rt_.undefined_error(v);
        if (!v.is_number()) rt_.error(std::string("must be real number, not ") + type_name(v));
        if (zero) zero_fill(spec);
        return pad(rt_, sign_text(std::signbit(v.as_double()), spec.sign), float_digits(rt_, v.as_double(), spec), spec,
                   '>');
      }
      default:
        rt_.error("unsupported format character " + code_name(spec.type));
    }
  }

  static void zero_fill(Spec& spec) {
    spec.fill = "0";
    spec.align = '=';
  }

  std::string integer(const Value& v, Spec spec, bool zero) {
    if (v.is_undefined()) rt_.undefined_error(v);
    if (!v.is_number() || (v.is(Kind::kFloat) && (spec.type == 'o' || spec.type == 'x' || spec.type == 'X')))
      rt_.error(std::string("%") + spec.type + " format: a number is required, not " + type_name(v));
    if (v.is(Kind::kFloat) && !(std::abs(v.number) < 0x1p126)) rt_.error("%d format: the number is out of range");
    const Int i = v.is(Kind::kFloat) ? Int(v.number) : v.as_int();
    const unsigned base = spec.type == 'o' ? 8 : spec.type == 'x' || spec.type == 'X' ? 16 : 10;
    std::string digits = digits_in_base(i, base, spec.type == 'X');
    if (spec.precision > int(digits.size())) {
      rt_.reserve(size_t(spec.precision));
      digits.insert(0, size_t(spec.precision) - digits.size(), '0');
    }
    std::string sign = sign_text(i < 0, spec.sign);
    if (spec.alternate && base != 10) sign += base == 8 ? "0o" : spec.type == 'x' ? "0x" : "0X";
    if (zero) zero_fill(spec);
    return pad(rt_, sign, digits, spec, '>');
  }

  Runtime& rt_;
  std::string_view text_;
  const Value& values_;
  bool escape_;
  bool by_name_ = false;
  size_t used_ = 0;
};

}  // namespace

Value percent_format(Runtime& rt, const Value& text, const Value& values) {
  rt.walk_bytes(text.str().size());
  return rt.text(PercentFormatter(rt, text, values).run(), text.is_markup());
}

}  // namespace mettle::jinja

#include "text/jinja_operators.h"

#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

[[noreturn]] void bad_operands(Runtime& rt, const char* op, const Value& a, const Value& b) {
  if (a.is_undefined()) rt.undefined_error(a);
  if (b.is_undefined()) rt.undefined_error(b);
  rt.error(std::string("unsupported operand types for ") + op + ": '" + type_name(a) + "' and '" + type_name(b) + "'");
}

const char* sign_of(Arithmetic op) {
  constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
  return kSigns[int(op)];
}

[[noreturn]] void too_big(Runtime& rt) { rt.error("an integer grew beyond 127 bits"); }

Int int_power(Runtime& rt, Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) too_big(rt);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_big(rt);
  }
  return result;
}

Value float_arithmetic(Runtime& rt, Arithmetic op, double a, double b) {
  switch (op) {
    case Arithmetic::kAdd:
      return Value::of_float(a + b);
    case Arithmetic::kSub:
      return Value::of_float(a - b);
    case Arithmetic::kMul:
      return Value::of_float(a * b);
    case Arithmetic::kDiv:
      if (b == 0) rt.error("division by zero");
      return Value::of_float(a / b);
    case Arithmetic::kFloorDiv:
    case Arithmetic::kMod: {
      if (b == 0) rt.error("division by zero");
      double rest = std::fmod(a, b);
      double whole = (a - rest) / b;
      if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        whole -= 1;
      }
      if (rest == 0) rest = std::copysign(0.0, b);
      if (op == Arithmetic::kMod) return Value::of_float(rest);
      if (whole == 0) return Value::of_float(std::copysign(0.0, a / b));
      const double floored = std::floor(whole);
      return Value::of_float(whole - floored > 0.5 ? floored + 1 : floored);
    }
    case Arithmetic::kPow: {
      if (a == 0 && b < 0) rt.error("0.0 cannot be raised to a negative power");
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) rt.error("the power would be a complex number");
      if (std::isinf(power) && !std::isinf(a) && !std::isinf(b)) rt.error("the power is out of range");
      return Value::of_float(power);
    }
  }
  return {};
}

Value int_arithmetic(Runtime& rt, Arithmetic op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Arithmetic::kAdd:
      if (__builtin_add_overflow(a, b, &result)) too_big(rt);
      return Value::of_int(result);
    case Arithmetic::kSub:
      if (__builtin_sub_overflow(a, b, &result)) too_big(rt);
      return Value::of_int(result);
    case Arithmetic::kMul:
      if (__builtin_mul_overflow(a, b, &result)) too_big(rt);
      return Value::of_int(result);
    case Arithmetic::kDiv:
      if (b == 0) rt.error("division by zero");
      return Value::of_float(double(a) / double(b));
    case Arithmetic::kFloorDiv:
    case Arithmetic::kMod: {
      if (b == 0) rt.error("integer division or modulo by zero");
      if (b == -1) {  // the smallest integer has no quotient
        if (op == Arithmetic::kMod) return Value::of_int(0);
        if (__builtin_sub_overflow(Int(0), a, &result)) too_big(rt);
        return Value::of_int(result);
      }
      Int whole = a / b, rest = a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        whole -= 1;
      }
      return Value::of_int(op == Arithmetic::kMod ? rest : whole);
    }
    case Arithmetic::kPow:
      if (b < 0) return float_arithmetic(rt, op, double(a), double(b));
      return Value::of_int(int_power(rt, a, b));
  }
  return {};
}

Value add_texts(Runtime& rt, const Value& a, const Value& b) {
  if (!a.is_markup() && !b.is_markup()) {
    rt.reserve(a.str().size() + b.str().size());
    return rt.text(std::string(a.str()).append(b.str()));
  }
  return rt.text(escaped(rt, a) + escaped(rt, b), true);
}

Value repeat(Runtime& rt, const Value& v, Int times) {
  const size_t size = v.is_string() ? v.str().size() : v.items().size() * sizeof(Value);
  if (times < 0 || size == 0) times = 0;
  if (times > Int(1) << 40) times = Int(1) << 40;  // far beyond any limit, and the product below stays in range
  size_t total = 0;
  if (__builtin_mul_overflow(size, size_t(times), &total)) total = SIZE_MAX;
  rt.reserve(total);
  if (v.is_string()) {
    std::string out;
    out.reserve(total);
    if (total > 0) out = v.str();
    while (out.size() < total) out.append(out, 0, total - out.size());  // doubles
    return rt.text(std::move(out), v.text->markup);
  }
  std::vector<Value> out;
  for (Int i = 0; i < times; i++) out.insert(out.end(), v.items().begin(), v.items().end());
  return v.is(Kind::kList) ? rt.list(std::move(out)) : rt.tuple(std::move(out));
}

template <class T>
bool holds(Order order, const T& a, const T& b) {
  switch (order) {
    case Order::kLess:
      return a < b;
    case Order::kLessEqual:
      return a <= b;
    case Order::kGreater:
      return a > b;
    case Order::kGreaterEqual:
      return a >= b;
  }
  return false;
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
  if (a.is(Kind::kFloat) && b.is(Kind::kFloat)) return a.number == b.number;
  const double f = a.is(Kind::kFloat) ? a.number : b.number;
  const Int i = a.is(Kind::kFloat) ? b.as_int() : a.as_int();
  return std::abs(f) < 0x1p126 && std::floor(f) == f && Int(f) == i;
}

bool equal_dicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = dict_find(rt, b, key);
    if (!other || !equal(rt, value, *other)) return false;
  }
  return true;
}

}  // namespace

bool truth(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return v.boolean;
    case Kind::kInt:
      return v.integer != 0;
    case Kind::kFloat:
      return v.number != 0;
    default:
      break;
  }
  const auto n = try_length(v);
  return !n || *n > 0;
}

bool equal(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      rt.walk_bytes(a.str().size());
      return a.str() == b.str();
    case Kind::kList:
    case Kind::kTuple: {
      if (a.object == b.object) return true;
      const auto& x = a.items();
      const auto& y = b.items();
      if (x.size() != y.size()) return false;
      const auto deeper = rt.enter_value();
      for (size_t i = 0; i < x.size(); i++) {
        if (!equal(rt, x[i], y[i])) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.object == b.object) return true;
      const auto deeper = rt.enter_value();
      return equal_dicts(rt, a.dict(), b.dict());
    }
    case Kind::kRange: {
      const Range &x = a.range(), &y = b.range();
      return x.size() == y.size() && (x.size() == 0 || (x.start == y.start && (x.size() == 1 || x.step == y.step)));
    }
    default:
      return a.object == b.object;
  }
}

bool ordered(Runtime& rt, Order order, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return holds(order, a.as_int(), b.as_int());
    // A long double holds every 64-bit integer exactly.
    const auto wide = [](const Value& v) -> long double { return v.is(Kind::kFloat) ? v.number : v.as_int(); };
    return holds(order, wide(a), wide(b));
  }
  if (a.is_string() && b.is_string()) {
    rt.walk_bytes(std::min(a.str().size(), b.str().size()));
    return holds(order, a.str(), b.str());
  }
  if (a.is_sequence() && a.kind == b.kind) {
    const auto deeper = rt.enter_value();
    const auto& x = a.items();
    const auto& y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); i++) {
      if (!equal(rt, x[i], y[i])) return ordered(rt, order, x[i], y[i]);
    }
    return holds(order, x.size(), y.size());
  }
  constexpr const char* kSigns[] = {"<", "<=", ">", ">="};
  bad_operands(rt, kSigns[int(order)], a, b);
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.kind) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string())
        rt.error(std::string("'in <string>' requires string as left operand, not ") + type_name(item));
      rt.walk_bytes(container.str().size());
      return find_text(container.str(), item.str()) != std::string_view::npos;
    case Kind::kDict:
      return dict_find(rt, container.dict(), item) != nullptr;
    case Kind::kDictView:
      if (container.view().part == DictView::Part::kKeys) return dict_find(rt, *container.view().dict, item) != nullptr;
      break;
    case Kind::kRange:
      if (item.is_integral()) {
        const Range& r = container.range();
        const Int i = item.as_int();
        return (r.step > 0 ? i >= r.start && i < r.stop : i <= r.start && i > r.stop) && (i - r.start) % r.step == 0;
      }
      break;
    default:
      break;
  }
  Cursor cursor(rt, container);
  Value v;
  while (cursor.next(v)) {
    if (equal(rt, v, item)) return true;
  }
  return false;
}

Value arithmetic(Runtime& rt, Arithmetic op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return int_arithmetic(rt, op, a.as_int(), b.as_int());
    return float_arithmetic(rt, op, a.as_double(), b.as_double());
  }
  if (op == Arithmetic::kMod && a.is_string()) return percent_format(rt, a, b);
  if (op == Arithmetic::kAdd && a.is_string() && b.is_string()) return add_texts(rt, a, b);
  if (op == Arithmetic::kAdd && a.is_sequence() && a.kind == b.kind) {
    rt.reserve((a.items().size() + b.items().size()) * sizeof(Value));
    std::vector<Value> out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return a.is(Kind::kList) ? rt.list(std::move(out)) : rt.tuple(std::move(out));
  }
  if (op == Arithmetic::kMul) {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(rt, a, b.as_int());
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(rt, b, a.as_int());
  }
  bad_operands(rt, sign_of(op), a, b);
}

Value negate(Runtime& rt, const Value& v, bool minus) {
  if (v.is_integral()) {
    Int result = v.as_int();
    if (minus && __builtin_sub_overflow(Int(0), v.as_int(), &result)) too_big(rt);
    return Value::of_int(result);
  }
  if (v.is(Kind::kFloat)) return Value::of_float(minus ? -v.number : v.number);
  if (v.is_undefined()) rt.undefined_error(v);
  rt.error(std::string("bad operand type for unary ") + (minus ? "-" : "+") + ": '" + type_name(v) + "'");
}

}  // namespace mettle::jinja

// What may stand behind `is`.
#include <algorithm>

#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"

namespace mettle::jinja {
namespace {

template <bool (*holds)(const Value&)>
bool plain(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "test", call, {});
  return holds(v);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is(Kind::kBool); }
bool is_true(const Value& v) { return v.is(Kind::kBool) && v.boolean; }
bool is_false(const Value& v) { return v.is(Kind::kBool) && !v.boolean; }
bool is_integer(const Value& v) { return v.is(Kind::kInt); }
bool is_float(const Value& v) { return v.is(Kind::kFloat); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_mapping(const Value& v) { return v.is(Kind::kDict); }
bool is_escaped(const Value& v) { return v.is_markup(); }
// Python asks for a length and for indexing, which an undefined value has too.
bool is_sequence(const Value& v) { return try_length(v).has_value() && !v.is(Kind::kDictView); }
bool is_callable(const Value& v) { return v.is(Kind::kCallable) || v.is_undefined(); }

template <bool upper>
bool has_case(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "test", call, {});
  return has_case_only(to_str(rt, v), upper);
}

bool remainder_is(Runtime& rt, const Value& v, const Value& by, Int rest) {
  return equal(rt, arithmetic(rt, Arithmetic::kMod, v, by), Value::of_int(rest));
}
bool is_odd(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "odd", call, {});
  return remainder_is(rt, v, Value::of_int(2), 1);
}
bool is_even(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "even", call, {});
  return remainder_is(rt, v, Value::of_int(2), 0);
}
bool is_divisible(Runtime& rt, const Value& v, Call& call) {
  return remainder_is(rt, v, *bind(rt, "divisibleby", call, {"num"}, 1)[0], 0);
}

bool is_equal(Runtime& rt, const Value& v, Call& call) { return equal(rt, v, *bind(rt, "eq", call, {""}, 1)[0]); }
bool is_unequal(Runtime& rt, const Value& v, Call& call) { return !equal(rt, v, *bind(rt, "ne", call, {""}, 1)[0]); }
template <Order order>
bool is_ordered(Runtime& rt, const Value& v, Call& call) {
  return ordered(rt, order, v, *bind(rt, "comparison", call, {""}, 1)[0]);
}

bool is_in(Runtime& rt, const Value& v, Call& call) { return contains(rt, *bind(rt, "in", call, {"seq"}, 1)[0], v); }

bool is_same(Runtime& rt, const Value& v, Call& call) {
  const Value& other = *bind(rt, "sameas", call, {"other"}, 1)[0];
  if (v.kind != other.kind) return false;
  switch (v.kind) {
    case Kind::kUndefined:
      return v.text == other.text;
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return v.boolean == other.boolean;
    case Kind::kInt:
      return v.integer == other.integer;
    case Kind::kFloat:
      return v.number == other.number;
    case Kind::kString:
      return v.text == other.text || v.str() == other.str();
    default:
      return v.object == other.object;
  }
}

bool is_filter(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "filter", call, {});
  return v.is_string() && find_filter(v.str());
}
bool is_test(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "test", call, {});
  return v.is_string() && find_test(v.str());
}

struct Entry {
  std::string_view name;
  TestFunction function;
};

constexpr Entry kTests[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_undefined>},
    {"none", plain<is_none>},
    {"boolean", plain<is_boolean>},
    {"true", plain<is_true>},
    {"false", plain<is_false>},
    {"integer", plain<is_integer>},
    {"float", plain<is_float>},
    {"number", plain<is_number>},
    {"string", plain<is_string>},
    {"mapping", plain<is_mapping>},
    {"sequence", plain<is_sequence>},
    {"iterable", plain<is_iterable>},
    {"callable", plain<is_callable>},
    {"escaped", plain<is_escaped>},
    {"lower", has_case<false>},
    {"upper", has_case<true>},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"sameas", is_same},
    {"in", is_in},
    {"filter", is_filter},
    {"test", is_test},
    {"==", is_equal},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"!=", is_unequal},
    {"ne", is_unequal},
    {">", is_ordered<Order::kGreater>},
    {"gt", is_ordered<Order::kGreater>},
    {"greaterthan", is_ordered<Order::kGreater>},
    {">=", is_ordered<Order::kGreaterEqual>},
    {"ge", is_ordered<Order::kGreaterEqual>},
    {"<", is_ordered<Order::kLess>},
    {"lt", is_ordered<Order::kLess>},
    {"lessthan", is_ordered<Order::kLess>},
    {"<=", is_ordered<Order::kLessEqual>},
    {"le", is_ordered<Order::kLessEqual>},
};

}  // namespace

TestFunction find_test(std::string_view name) {
  for (const Entry& e : kTests) {
    if (e.name == name) return e.function;
  }
  return nullptr;
}

}  // namespace mettle::jinja

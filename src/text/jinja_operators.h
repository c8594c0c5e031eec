// Python's operators, truth, comparison, indexing and iteration on template values, with the sandbox's rules.
#pragma once
#include <optional>

#include "text/jinja_runtime.h"

namespace mettle::jinja {

bool truth(const Value& v);
bool equal(Runtime& rt, const Value& a, const Value& b);
enum class Order { kLess, kLessEqual, kGreater, kGreaterEqual };
bool ordered(Runtime& rt, Order order, const Value& a, const Value& b);  // fails for types without an order
inline bool less(Runtime& rt, const Value& a, const Value& b) { return ordered(rt, Order::kLess, a, b); }
bool contains(Runtime& rt, const Value& container, const Value& item);

enum class Arithmetic { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
Value arithmetic(Runtime& rt, Arithmetic op, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& v, bool minus);  // unary - and +

std::optional<size_t> try_length(const Value& v);
size_t length(Runtime& rt, const Value& v);

Value get_item(Runtime& rt, const Value& object, const Value& key);            // object[key]
Value get_attribute(Runtime& rt, const Value& object, std::string_view name);  // object.name
// The attributes that Python's object has, which come before its items; false when there is none of that name.
bool find_own_attribute(Runtime& rt, const Value& object, std::string_view name, Value& out);
// A bound that is None is left out.
Value get_slice(Runtime& rt, const Value& object, const Value& start, const Value& stop, const Value& step);

// A key of any hashable type; nullptr when it is not there. Fails for a list or a dict as key.
const Value* dict_find(Runtime& rt, const Dict& dict, const Value& key);
void dict_set(Runtime& rt, Dict& dict, const Value& key, const Value& value);

// A method of a string, list, tuple or dict; false when Python has none of that name. The mutating ones, which the
// sandbox forbids, come back as an undefined value that says so.
bool find_method(Runtime& rt, const Value& self, std::string_view name, Value& out);

// The same without an object for the method, for a call right away; nullptr when there is none or it is forbidden.
using Method = Value (*)(Runtime& rt, const Value& self, Call& call);
Method method_of(const Value& self, std::string_view name);

bool is_iterable(const Value& v);
// Walks over anything iterable; an Iterator is used up by it.
class Cursor {
 public:
  Cursor(Runtime& rt, const Value& v);  // fails when v is not iterable
  bool next(Value& out);

 private:
  Runtime& rt_;
  Value v_;
  size_t at_ = 0, size_ = 0;
};
std::vector<Value> collect(Runtime& rt, const Value& v);

}  // namespace mettle::jinja

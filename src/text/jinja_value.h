// The values of a template while it renders: Python's, as far as templates see them.
// Strings are counted references. Containers belong to the Runtime and live until the render ends, so a template
// that ties a namespace to itself leaks nothing.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mettle::jinja {

class Runtime;

// Python's integers have no end; here they end at 127 bits (an operation beyond is an error), which holds every
// product of two JSON integers.
using Int = __int128;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,
  kRange,
  kIterator,
  kNamespace,
  kCallable,
};

struct Text {
  std::string bytes;  // UTF-8
  bool markup = false;
  size_t chars = 0;
  size_t* live_bytes = nullptr;  // the Runtime's count; constants of a template have none

  Text(std::string b, bool is_markup, size_t* live);
  ~Text();
  Text(const Text&) = delete;
  bool ascii() const { return chars == bytes.size(); }
};

struct Object {
  virtual ~Object() = default;
};
struct List;
struct Dict;
struct DictView;
struct Range;
struct Iterator;
struct Namespace;
struct Callable;

struct Value {
  Kind kind = Kind::kUndefined;
  union {
    bool boolean;
    Int integer = 0;
    double number;
    Object* object;
  };
  std::shared_ptr<const Text> text;  // kString; of kUndefined the sentence for the error, empty when there is none

  Value() {}
  static Value none() { return Value(Kind::kNone); }
  static Value of(bool b) {
    Value v(Kind::kBool);
    v.boolean = b;
    return v;
  }
  static Value of_int(Int i) {
    Value v(Kind::kInt);
    v.integer = i;
    return v;
  }
  static Value of_float(double f) {
    Value v(Kind::kFloat);
    v.number = f;
    return v;
  }
  static Value of(std::shared_ptr<const Text> t) {
    Value v(Kind::kString);
    v.text = std::move(t);
    return v;
  }
  static Value of(Kind kind, Object* object) {
    Value v(kind);
    v.object = object;
    return v;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_markup() const { return kind == Kind::kString && text->markup; }
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }

  std::string_view str() const { return text->bytes; }
  Int as_int() const { return kind == Kind::kBool ? Int(boolean) : integer; }
  double as_double() const { return kind == Kind::kFloat ? number : double(as_int()); }
  std::vector<Value>& items() const;  // kList, kTuple
  Dict& dict() const;
  DictView& view() const;
  Range& range() const;
  Iterator& iterator() const;
  Namespace& space() const;
  Callable& callable() const;

 private:
  explicit Value(Kind k) : kind(k) {}
};

struct List : Object {
  std::vector<Value> items;
  bool is_group = false;  // a tuple of the groupby filter, whose items have the names grouper and list
};

// Keeps the order of insertion. Keys are strings nearly always; others are compared one by one.
struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string_view, size_t> index;  // string keys

  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // a string key
};

struct DictView : Object {
  enum class Part { kKeys, kValues, kItems };
  Dict* dict = nullptr;
  Part part = Part::kItems;
};

struct Range : Object {
  Int start = 0, stop = 0, step = 1;
  size_t size() const;
  Int at(size_t i) const { return start + Int(i) * step; }
};

// Ends for good, as Python's generators do.
struct Iterator : Object {
  std::function<bool(Value&)> next;
  const char* type_name = "generator";
  bool running = false;
};

struct Namespace : Object {
  Dict attributes;
};

struct Call {
  std::vector<Value> args;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(std::string_view name) const;
};

struct Callable : Object {
  virtual Value call(Runtime& rt, Call& call) = 0;
  virtual std::string name() const = 0;
  // An attribute that Python's object would have; false when there is none.
  virtual bool attribute(Runtime&, std::string_view, Value&) { return false; }
};

using BuiltinFunction = Value (*)(Runtime& rt, Call& call);
using FilterFunction = Value (*)(Runtime& rt, const Value& value, Call& call);
using TestFunction = bool (*)(Runtime& rt, const Value& value, Call& call);

// nullptr when there is none of that name.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
// range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
BuiltinFunction find_global(std::string_view name);

}  // namespace mettle::jinja

// What one render owns: its objects, its limits, and the line for error messages.
#pragma once
#include <initializer_list>

#include "text/chat_template.h"
#include "text/jinja_value.h"

namespace mettle::jinja {

// Thrown inside the engine only; ChatTemplate turns it into kInvalidRequest.
struct RenderError {
  std::string message;
};

class Runtime {
 public:
  explicit Runtime(const TemplateLimits& limits) : limits_(limits) {}
  Runtime(const Runtime&) = delete;

  // Work done: one a statement or expression, and one for every 256 bytes or 8 items that an operation walks over.
  void step(size_t n = 1) {
    steps_ += n;
    if (steps_ > limits_.steps) too_much("steps", limits_.steps);
  }
  void walk_bytes(size_t bytes) { step(bytes / 256); }
  void walk_items(size_t items) { step(items / 8); }
  // Before `bytes` are allocated: fails when they would pass the limit.
  void reserve(size_t bytes);
  // Objects that grow after make().
  void hold(size_t bytes) {
    reserve(bytes);
    held_bytes_ += bytes;
  }
  // A string under construction; unlike reserve() it costs no steps, so it may be asked often.
  void check_size(size_t bytes) const {
    if (bytes > limits_.memory || live_bytes_ + held_bytes_ > limits_.memory - bytes)
      too_much("bytes of memory", limits_.memory);
  }
  void check_output(size_t bytes) {
    if (bytes > limits_.output) too_much("bytes of output", limits_.output);
  }

  Value text(std::string bytes, bool markup = false);
  Value list(std::vector<Value> items) { return container(Kind::kList, std::move(items)); }
  Value tuple(std::vector<Value> items) { return container(Kind::kTuple, std::move(items)); }
  Value dict(Dict** out);
  Value iterator(std::function<bool(Value&)> next, const char* type_name = "generator");
  Value undefined(std::string why);
  Value function(std::string name, BuiltinFunction function);

  template <class T>
  T* make(size_t extra_bytes = 0) {
    hold(sizeof(T) + extra_bytes);
    objects_.push_back(std::make_unique<T>());
    return static_cast<T*>(objects_.back().get());
  }

  [[noreturn]] void error(const std::string& message) const;
  // The operation needs a value but got an undefined one.
  [[noreturn]] void undefined_error(const Value& v) const;

  // Nested calls, and nested expressions and statements, which also guards this thread's stack.
  struct Deeper {
    Runtime& rt;
    size_t& depth;
    Deeper(Runtime& r, size_t& d, size_t limit) : rt(r), depth(d) {
      if (++depth > limit) {
        depth--;
        rt.too_much("levels of nesting", limit);
      }
    }
    ~Deeper() { depth--; }
  };
  Deeper enter_call() { return Deeper(*this, calls_, limits_.depth); }
  Deeper enter_node() { return Deeper(*this, nodes_, limits_.depth * 10); }
  // Values inside values: comparing, printing.
  Deeper enter_value() { return Deeper(*this, values_, limits_.depth); }

  int line = 0;

 private:
  [[noreturn]] void too_much(const char* what, size_t limit) const;
  Value container(Kind kind, std::vector<Value> items);

  TemplateLimits limits_;
  size_t steps_ = 0, calls_ = 0, nodes_ = 0, values_ = 0;
  size_t live_bytes_ = 0;  // of strings
  size_t held_bytes_ = 0;  // of objects, which stay
  std::vector<std::unique_ptr<Object>> objects_;
};

// The arguments of a call in the order of the parameters, as Python binds them; nullptr where none came. An empty name
// takes its argument by position only. Fails on missing (the first `required`), unknown and superfluous ones.
std::vector<const Value*> bind(Runtime& rt, std::string_view callee, const Call& call,
                               std::initializer_list<std::string_view> names, size_t required = 0);

}  // namespace mettle::jinja

#include "text/jinja_runtime.h"

#include <algorithm>

#include "text/jinja_unicode.h"

namespace mettle::jinja {

Text::Text(std::string b, bool is_markup, size_t* live)
    : bytes(std::move(b)), markup(is_markup), chars(count_chars(bytes)), live_bytes(live) {
  if (live_bytes) *live_bytes += bytes.size() + sizeof(Text);
}

Text::~Text() {
  if (live_bytes) *live_bytes -= bytes.size() + sizeof(Text);
}

std::vector<Value>& Value::items() const { return static_cast<List*>(object)->items; }
Dict& Value::dict() const { return *static_cast<Dict*>(object); }
DictView& Value::view() const { return *static_cast<DictView*>(object); }
Range& Value::range() const { return *static_cast<Range*>(object); }
Iterator& Value::iterator() const { return *static_cast<Iterator*>(object); }
Namespace& Value::space() const { return *static_cast<Namespace*>(object); }
Callable& Value::callable() const { return *static_cast<Callable*>(object); }

const Value* Dict::find(std::string_view key) const {
  const auto it = index.find(key);
  return it == index.end() ? nullptr : &entries[it->second].second;
}

void Dict::set(Value key, Value value) {
  const auto [it, fresh] = index.try_emplace(key.str(), entries.size());
  if (fresh)
    entries.emplace_back(std::move(key), std::move(value));
  else
    entries[it->second].second = std::move(value);
}

size_t Range::size() const {
  if (step > 0) return start < stop ? size_t((stop - start - 1) / step + 1) : 0;
  return start > stop ? size_t((start - stop - 1) / -step + 1) : 0;
}

const Value* Call::find(std::string_view name) const {
  for (const auto& [n, value] : named) {
    if (n == name) return &value;
  }
  return nullptr;
}

void Runtime::reserve(size_t bytes) {
  check_size(bytes);
  walk_bytes(bytes);
}

Value Runtime::text(std::string bytes, bool markup) {
  reserve(bytes.size() + sizeof(Text));
  return Value::of(std::make_shared<const Text>(std::move(bytes), markup, &live_bytes_));
}

Value Runtime::container(Kind kind, std::vector<Value> items) {
  List* list = make<List>(items.size() * sizeof(Value));
  list->items = std::move(items);
  return Value::of(kind, list);
}

Value Runtime::dict(Dict** out) {
  *out = make<Dict>();
  return Value::of(Kind::kDict, *out);
}

Value Runtime::iterator(std::function<bool(Value&)> next, const char* type_name) {
  auto* it = make<Iterator>(128);
  it->next = std::move(next);
  it->type_name = type_name;
  return Value::of(Kind::kIterator, it);
}

Value Runtime::undefined(std::string why) {
  Value v;
  v.text = text(std::move(why)).text;
  return v;
}

namespace {

struct Builtin : Callable {
  std::string its_name;
  BuiltinFunction function = nullptr;
  Value call(Runtime& rt, Call& call) override { return function(rt, call); }
  std::string name() const override { return its_name; }
};

}  // namespace

Value Runtime::function(std::string name, BuiltinFunction function) {
  auto* f = make<Builtin>();
  f->its_name = std::move(name);
  f->function = function;
  return Value::of(Kind::kCallable, f);
}

void Runtime::error(const std::string& message) const {
  // Values of any length get into messages.
  throw RenderError{"chat template, line " + std::to_string(line) + ": " + shortened(message, 1000)};
}

void Runtime::undefined_error(const Value& v) const { error(v.text ? v.text->bytes : "the value is undefined"); }

void Runtime::too_much(const char* what, size_t limit) const {
  error("more than " + std::to_string(limit) + " " + what + ", the limit for templates");
}

std::vector<const Value*> bind(Runtime& rt, std::string_view callee, const Call& call,
                               std::initializer_list<std::string_view> names, size_t required) {
  const std::string subject(callee);
  if (call.args.size() > names.size())
    rt.error(subject + ": takes at most " + std::to_string(names.size()) + " arguments, got " +
             std::to_string(call.args.size()));
  std::vector<const Value*> out(names.size(), nullptr);
  for (size_t i = 0; i < call.args.size(); i++) out[i] = &call.args[i];
  for (const auto& [name, value] : call.named) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end() || name.empty()) rt.error(subject + ": has no argument '" + name + "'");
    const Value*& slot = out[size_t(it - names.begin())];
    if (slot) rt.error(subject + ": got two values for argument '" + name + "'");
    slot = &value;
  }
  for (size_t i = 0; i < required; i++) {
    if (!out[i])
      rt.error(subject + ": needs " + std::to_string(required) + " arguments, got " +
               std::to_string(call.args.size() + call.named.size()));
  }
  return out;
}

}  // namespace mettle::jinja

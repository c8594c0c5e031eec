// The methods of list, tuple and dict, and finding a method by name.
#include "text/jinja_methods.h"

#include <algorithm>

#include "text/jinja_print.h"

namespace mettle::jinja {
namespace {

Int want_int(Runtime& rt, const Value& v, const char* method) {
  if (!v.is_integral()) rt.error(std::string(method) + ": must be int, not " + type_name(v));
  return v.as_int();
}

Value sequence_index(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "index", call, {"", "", ""}, 1);
  const Int size = Int(self.items().size());
  const auto bound = [&](const Value* v, Int missing) {
    if (!v) return missing;
    const Int i = want_int(rt, *v, "index");
    return std::clamp<Int>(i < 0 ? i + size : i, 0, size);
  };
  const Int stop = bound(a[2], size);
  for (Int i = bound(a[1], 0); i < stop; i++) {
    if (equal(rt, self.items()[size_t(i)], *a[0])) return Value::of_int(i);
  }
  rt.error("index: the value is not in the " + std::string(type_name(self)));
}

Value sequence_count(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "count", call, {""}, 1);
  Int n = 0;
  for (const Value& item : self.items()) n += equal(rt, item, *a[0]);
  return Value::of_int(n);
}

Value list_copy(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "copy", call, {});
  rt.reserve(self.items().size() * sizeof(Value));
  return rt.list(self.items());
}

constexpr MethodEntry kList[] = {{"index", sequence_index}, {"count", sequence_count}, {"copy", list_copy},
                                 {"append", nullptr},       {"clear", nullptr},        {"pop", nullptr},
                                 {"reverse", nullptr},      {"insert", nullptr},       {"sort", nullptr},
                                 {"extend", nullptr},       {"remove", nullptr}};
constexpr MethodEntry kTuple[] = {{"index", sequence_index}, {"count", sequence_count}};

Value dict_get(Runtime& rt, const Value& self, Call& call) {
  const auto a = bind(rt, "get", call, {"", ""}, 1);
  const Value* v = dict_find(rt, self.dict(), *a[0]);
  return v ? *v : a[1] ? *a[1] : Value::none();
}

template <DictView::Part part>
Value dict_view(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "dict method", call, {});
  auto* view = rt.make<DictView>();
  view->dict = &self.dict();
  view->part = part;
  return Value::of(Kind::kDictView, view);
}

Value dict_copy(Runtime& rt, const Value& self, Call& call) {
  bind(rt, "copy", call, {});
  Dict* out = nullptr;
  const Value copy = rt.dict(&out);
  for (const auto& [key, value] : self.dict().entries) dict_set(rt, *out, key, value);
  return copy;
}

constexpr MethodEntry kDict[] = {{"get", dict_get},
                                 {"keys", dict_view<DictView::Part::kKeys>},
                                 {"values", dict_view<DictView::Part::kValues>},
                                 {"items", dict_view<DictView::Part::kItems>},
                                 {"copy", dict_copy},
                                 {"clear", nullptr},
                                 {"pop", nullptr},
                                 {"popitem", nullptr},
                                 {"setdefault", nullptr},
                                 {"update", nullptr}};

struct BoundMethod : Callable {
  Value self;
  const MethodEntry* entry = nullptr;
  Value call(Runtime& rt, Call& call) override { return entry->method(rt, self, call); }
  std::string name() const override {
    return "<built-in method " + std::string(entry->name) + " of " + type_name(self) + " object>";
  }
};

const MethodEntry* find_entry(const Value& self, std::string_view name) {
  std::span<const MethodEntry> table;
  switch (self.kind) {
    case Kind::kString:
      table = text_methods();
      break;
    case Kind::kList:
      table = kList;
      break;
    case Kind::kTuple:
      table = kTuple;
      break;
    case Kind::kDict:
      table = kDict;
      break;
    default:
      break;
  }
  for (const MethodEntry& e : table) {
    if (e.name == name) return &e;
  }
  return nullptr;
}

}  // namespace

Method method_of(const Value& self, std::string_view name) {
  const MethodEntry* e = find_entry(self, name);
  return e ? e->method : nullptr;
}

bool find_method(Runtime& rt, const Value& self, std::string_view name, Value& out) {
  const MethodEntry* e = find_entry(self, name);
  if (!e) return false;
  if (!e->method) {
    out = rt.undefined("access to attribute " + text_repr(name) + " of " + text_repr(type_name(self)) +
                       " object is unsafe.");
    return true;
  }
  auto* bound = rt.make<BoundMethod>();
  bound->self = self;
  bound->entry = e;
  out = Value::of(Kind::kCallable, bound);
  return true;
}

}  // namespace mettle::jinja

// Functions that every template may call.
#include <ctime>

#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace mettle::jinja {
namespace {

constexpr size_t kMaxRange = 100'000;  // as Jinja2's sandbox

Int want_int(Runtime& rt, const Value& v, const char* function) {
  if (v.is_undefined()) rt.undefined_error(v);
  if (!v.is_integral()) rt.error(std::string(function) + ": must be int, not " + type_name(v));
  const Int i = v.as_int();
  if (i > INT64_MAX || i < INT64_MIN)
    rt.error(std::string(function) + ": the number is out of range, got " + int_text(i));
  return i;
}

Value range(Runtime& rt, Call& call) {
  const auto a = bind(rt, "range", call, {"", "", ""}, 1);
  auto* r = rt.make<Range>();
  const Int first = want_int(rt, *a[0], "range");
  r->start = a[1] ? first : 0;
  r->stop = a[1] ? want_int(rt, *a[1], "range") : first;
  if (a[2]) r->step = want_int(rt, *a[2], "range");
  if (r->step == 0) rt.error("range: the step must not be zero");
  if (r->size() > kMaxRange)
    rt.error("range: must have at most " + std::to_string(kMaxRange) + " items, got " + std::to_string(r->size()));
  return Value::of(Kind::kRange, r);
}

void fill_dict(Runtime& rt, Dict& into, const Call& call, const char* function) {
  if (call.args.size() > 1)
    rt.error(std::string(function) + ": takes at most 1 positional argument, got " + std::to_string(call.args.size()));
  if (!call.args.empty() && call.args[0].is(Kind::kDict)) {
    for (const auto& [key, value] : call.args[0].dict().entries) dict_set(rt, into, key, value);
  } else if (!call.args.empty()) {
    Cursor cursor(rt, call.args[0]);
    Value item;
    while (cursor.next(item)) {
      const std::vector<Value> pair = collect(rt, item);
      if (pair.size() != 2)
        rt.error(std::string(function) + ": needs pairs, got " + std::to_string(pair.size()) + " values");
      dict_set(rt, into, pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : call.named) dict_set(rt, into, rt.text(name), value);
}

Value dict(Runtime& rt, Call& call) {
  Dict* out = nullptr;
  const Value v = rt.dict(&out);
  fill_dict(rt, *out, call, "dict");
  return v;
}

Value make_namespace(Runtime& rt, Call& call) {
  auto* space = rt.make<Namespace>();
  fill_dict(rt, space->attributes, call, "namespace");
  return Value::of(Kind::kNamespace, space);
}

// cycler('a', 'b'): next(), reset(), current. joiner(', '): nothing when called first, its text afterwards.
struct Cycler : Callable {
  std::vector<Value> items;
  size_t at = 0;

  struct Method : Callable {
    Cycler* cycler = nullptr;
    bool advances = false;
    std::string name() const override { return advances ? "<Cycler.next>" : "<Cycler.reset>"; }
    Value call(Runtime& rt, Call& call) override {
      bind(rt, "cycler", call, {});
      if (!advances) {
        cycler->at = 0;
        return Value::none();
      }
      const Value v = cycler->items[cycler->at];
      cycler->at = (cycler->at + 1) % cycler->items.size();
      return v;
    }
  };

  std::string name() const override { return "<Cycler>"; }
  Value call(Runtime& rt, Call&) override { rt.error("'Cycler' object is not callable"); }
  bool attribute(Runtime& rt, std::string_view name, Value& out) override {
    if (name == "current") {
      out = items[at];
      return true;
    }
    if (name != "next" && name != "reset") return false;
    auto* m = rt.make<Method>();
    m->cycler = this;
    m->advances = name == "next";
    out = Value::of(Kind::kCallable, m);
    return true;
  }
};

struct Joiner : Callable {
  Value separator;
  bool used = false;
  std::string name() const override { return "<Joiner>"; }
  Value call(Runtime& rt, Call& call) override {
    bind(rt, "joiner", call, {});
    if (used) return separator;
    used = true;
    return rt.text("");
  }
};

Value cycler(Runtime& rt, Call& call) {
  if (call.args.empty() || !call.named.empty()) rt.error("cycler: at least one item has to be provided");
  auto* c = rt.make<Cycler>(call.args.size() * sizeof(Value));
  c->items = call.args;
  return Value::of(Kind::kCallable, c);
}

Value joiner(Runtime& rt, Call& call) {
  const auto a = bind(rt, "joiner", call, {"sep"});
  auto* j = rt.make<Joiner>();
  j->separator = a[0] ? *a[0] : rt.text(", ");
  return Value::of(Kind::kCallable, j);
}

Value raise_exception(Runtime& rt, Call& call) {
  std::string message = to_str(rt, *bind(rt, "raise_exception", call, {"message"}, 1)[0]);
  rt.check_output(message.size());
  throw RenderError{std::move(message)};
}

Value strftime_now(Runtime& rt, Call& call) {
  const Value& form = *bind(rt, "strftime_now", call, {"format"}, 1)[0];
  if (!form.is_string()) rt.error(std::string("strftime_now: the format must be str, not ") + type_name(form));
  if (form.str().size() > 1000)
    rt.error("strftime_now: the format must have at most 1000 bytes, got " + std::to_string(form.str().size()));
  if (form.str().find('\0') != std::string_view::npos) rt.error("strftime_now: the format must not have a zero byte");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  // An empty result and a full buffer look the same to strftime, hence the mark at the end.
  const std::string marked = std::string(form.str()) + "x";
  std::string out(64 * 1024, 0);
  const size_t size = std::strftime(out.data(), out.size(), marked.c_str(), &local);
  if (size == 0) rt.error("strftime_now: the result must have at most 65535 bytes");
  out.resize(size - 1);
  return rt.text(std::move(out));
}

struct Entry {
  std::string_view name;
  BuiltinFunction function;
};

constexpr Entry kGlobals[] = {{"range", range},
                              {"dict", dict},
                              {"cycler", cycler},
                              {"namespace", make_namespace},
                              {"joiner", joiner},
                              {"raise_exception", raise_exception},
                              {"strftime_now", strftime_now}};

}  // namespace

BuiltinFunction find_global(std::string_view name) {
  for (const Entry& e : kGlobals) {
    if (e.name == name) return e.function;
  }
  return nullptr;
}

}  // namespace mettle::jinja

// Lookup and iteration: object.name, object[key], slices, dict keys, and walking over anything iterable.
#include <cmath>

#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

constexpr Int kFarthest = Int{1} << 64;  // of the bounds and the step of a range

std::string object_name(const Value& v) { return v.is_none() ? "None" : std::string(type_name(v)) + " object"; }

Value no_attribute(Runtime& rt, const Value& object, std::string_view name) {
  return rt.undefined(text_repr(object_name(object)) + " has no attribute " + text_repr(name));
}

// object[key] where it exists; false for everything that Python answers with TypeError or LookupError.
bool find_item(Runtime& rt, const Value& object, const Value& key, Value& out) {
  if (object.is(Kind::kDict)) {
    if (key.is_sequence() || key.is(Kind::kDict)) {
      if (!key.is(Kind::kTuple)) return false;  // not hashable
    }
    const Value* v = dict_find(rt, object.dict(), key);
    if (v) out = *v;
    return v != nullptr;
  }
  if (!key.is_integral()) return false;
  if (!object.is_sequence() && !object.is_string() && !object.is(Kind::kRange)) return false;
  const Int size = Int(*try_length(object));
  Int i = key.as_int();
  if (i < 0) i += size;
  if (i < 0 || i >= size) return false;
  if (object.is_sequence()) {
    out = object.items()[size_t(i)];
  } else if (object.is(Kind::kRange)) {
    out = Value::of_int(object.range().at(size_t(i)));
  } else {
    const std::string_view text = object.str();
    if (!object.text->ascii()) rt.walk_bytes(text.size());
    size_t begin = object.text->ascii() ? size_t(i) : byte_offset(text, size_t(i));
    size_t end = begin;
    next_char(text, end);
    out = rt.text(std::string(text.substr(begin, end - begin)), object.text->markup);
  }
  return true;
}

Int slice_bound(Runtime& rt, const Value& v, Int missing, Int low, Int high, Int size) {
  if (v.is_none()) return missing;
  if (!v.is_integral()) rt.error(std::string("slice indices must be integers or None, got ") + type_name(v));
  Int i = v.as_int();
  if (i < 0) i += size;
  return i < low ? low : i > high ? high : i;
}

}  // namespace

bool find_own_attribute(Runtime& rt, const Value& object, std::string_view name, Value& out) {
  switch (object.kind) {
    case Kind::kNamespace: {
      const Value* v = object.space().attributes.find(name);
      if (v) out = *v;
      return v != nullptr;
    }
    case Kind::kCallable:
      return object.callable().attribute(rt, name, out);
    case Kind::kRange: {
      const Range& r = object.range();
      if (name != "start" && name != "stop" && name != "step") return false;
      out = Value::of_int(name == "start" ? r.start : name == "stop" ? r.stop : r.step);
      return true;
    }
    case Kind::kTuple:
      if (static_cast<List*>(object.object)->is_group && (name == "grouper" || name == "list")) {
        out = object.items()[name == "list"];
        return true;
      }
      return find_method(rt, object, name, out);
    default:
      return find_method(rt, object, name, out);
  }
}

std::optional<size_t> try_length(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return v.text->chars;
    case Kind::kList:
    case Kind::kTuple:
      return v.items().size();
    case Kind::kDict:
      return v.dict().entries.size();
    case Kind::kDictView:
      return v.view().dict->entries.size();
    case Kind::kRange:
      return v.range().size();
    default:
      return std::nullopt;
  }
}

size_t length(Runtime& rt, const Value& v) {
  if (const auto n = try_length(v)) return *n;
  if (v.is(Kind::kCallable)) {
    Value n;
    if (v.callable().attribute(rt, "length", n)) return size_t(n.as_int());  // the loop variable
  }
  rt.error(std::string("object of type '") + type_name(v) + "' has no len()");
}

Value get_attribute(Runtime& rt, const Value& object, std::string_view name) {
  if (object.is_undefined()) rt.undefined_error(object);
  Value out;
  if (find_own_attribute(rt, object, name, out)) return out;
  if (object.is(Kind::kDict)) {
    if (const Value* v = object.dict().find(name)) return *v;
  }
  return no_attribute(rt, object, name);
}

Value get_item(Runtime& rt, const Value& object, const Value& key) {
  if (object.is_undefined()) rt.undefined_error(object);
  Value out;
  if (find_item(rt, object, key, out)) return out;
  if (!key.is_string()) return rt.undefined(object_name(object) + " has no element " + to_repr(rt, key));
  if (find_own_attribute(rt, object, key.str(), out)) return out;
  return no_attribute(rt, object, key.str());
}

Value get_slice(Runtime& rt, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) rt.undefined_error(object);
  if (!object.is_sequence() && !object.is_string() && !object.is(Kind::kRange))
    rt.error(std::string("'") + type_name(object) + "' object cannot be sliced");
  if (!step.is_none() && !step.is_integral())
    rt.error(std::string("slice step must be an integer or None, got ") + type_name(step));
  const Int stride = step.is_none() ? 1 : step.as_int();
  if (stride == 0) rt.error("slice step cannot be zero");
  const Int size = Int(*try_length(object));
  const bool forward = stride > 0;
  const Int low = forward ? 0 : -1, high = forward ? size : size - 1;
  const Int from = slice_bound(rt, start, forward ? 0 : size - 1, low, high, size);
  const Int to = slice_bound(rt, stop, forward ? size : -1, low, high, size);
  Range picked;
  picked.start = from;
  picked.stop = to;
  // A stride beyond the size picks one element at most; cut so that the sums below stay in range.
  picked.step = stride > size + 1 ? size + 1 : stride < -size - 1 ? -size - 1 : stride;
  const size_t n = picked.size();
  if (object.is(Kind::kRange)) {
    const Range& r = object.range();
    auto* out = rt.make<Range>();
    // Slices of slices: the step doubles each time even where one item is left.
    const auto at = [&](Int i) {
      const Int bound = r.start + i * r.step;
      if (bound > kFarthest || bound < -kFarthest) rt.error("a slice of a range grew beyond 64 bits");
      return bound;
    };
    out->start = at(from);
    out->stop = at(to);
    out->step = r.step * picked.step;
    if (out->step > kFarthest || out->step < -kFarthest) rt.error("a slice of a range grew beyond 64 bits");
    return Value::of(Kind::kRange, out);
  }
  if (object.is_string()) {
    const std::string_view text = object.str();
    rt.walk_bytes(text.size());
    if (picked.step == 1) {
      const bool ascii = object.text->ascii();
      const size_t begin = ascii ? size_t(from) : byte_offset(text, size_t(from));
      const size_t bytes = ascii ? n : byte_offset(text.substr(begin), n);
      rt.reserve(bytes);
      return rt.text(std::string(text.substr(n ? begin : 0, n ? bytes : 0)), object.text->markup);
    }
    rt.check_size(text.size() * (1 + sizeof(std::string_view)));
    rt.walk_items(text.size());
    const auto chars = split_chars(text);
    std::string out;
    for (size_t i = 0; i < n; i++) out += chars[size_t(picked.at(i))];
    return rt.text(std::move(out), object.text->markup);
  }
  rt.reserve(n * sizeof(Value));
  std::vector<Value> out;
  out.reserve(n);
  for (size_t i = 0; i < n; i++) out.push_back(object.items()[size_t(picked.at(i))]);
  return object.is(Kind::kList) ? rt.list(std::move(out)) : rt.tuple(std::move(out));
}

const Value* dict_find(Runtime& rt, const Dict& dict, const Value& key) {
  if (key.is_string()) return dict.find(key.str());
  if (key.is(Kind::kList) || key.is(Kind::kDict)) rt.error(std::string("unhashable type: '") + type_name(key) + "'");
  if (dict.index.size() == dict.entries.size()) return nullptr;  // string keys only
  rt.walk_items(dict.entries.size());
  for (const auto& [k, v] : dict.entries) {
    if (!k.is_string() && equal(rt, k, key)) return &v;
  }
  return nullptr;
}

void dict_set(Runtime& rt, Dict& dict, const Value& key, const Value& value) {
  if (const Value* there = dict_find(rt, dict, key)) {
    *const_cast<Value*>(there) = value;
    return;
  }
  rt.hold(2 * sizeof(Value) + 64);
  if (key.is_string())
    dict.set(key, value);
  else
    dict.entries.emplace_back(key, value);
}

bool is_iterable(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

Cursor::Cursor(Runtime& rt, const Value& v) : rt_(rt), v_(v) {
  if (!is_iterable(v)) rt.error(std::string("'") + type_name(v) + "' object is not iterable");
  size_ = v.is_string() ? v.str().size() : try_length(v).value_or(0);
}

bool Cursor::next(Value& out) {
  rt_.step();
  if (v_.is(Kind::kIterator)) {
    Iterator& it = v_.iterator();
    if (!it.next) return false;
    if (it.running) rt_.error("a generator asks itself for its next item");
    const auto deeper = rt_.enter_value();
    it.running = true;
    const bool more = it.next(out);
    it.running = false;
    if (!more) it.next = nullptr;
    return more;
  }
  if (at_ >= size_) return false;
  switch (v_.kind) {
    case Kind::kString: {
      const size_t begin = at_;
      next_char(v_.str(), at_);
      out = rt_.text(std::string(v_.str().substr(begin, at_ - begin)));
      return true;
    }
    case Kind::kList:
    case Kind::kTuple:
      out = v_.items()[at_++];
      return true;
    case Kind::kDict:
      out = v_.dict().entries[at_++].first;
      return true;
    case Kind::kDictView: {
      const auto& entry = v_.view().dict->entries[at_++];
      using Part = DictView::Part;
      const Part part = v_.view().part;
      out = part == Part::kKeys     ? entry.first
            : part == Part::kValues ? entry.second
                                    : rt_.tuple({entry.first, entry.second});
      return true;
    }
    case Kind::kRange:
      out = Value::of_int(v_.range().at(at_++));
      return true;
    default:
      return false;
  }
}

std::vector<Value> collect(Runtime& rt, const Value& v) {
  std::vector<Value> out;
  Cursor cursor(rt, v);
  Value item;
  while (cursor.next(item)) {
    out.push_back(std::move(item));
    rt.check_size(out.size() * sizeof(Value));
  }
  return out;
}

}  // namespace mettle::jinja

// Filters on sequences and mappings: choosing, ordering, grouping.
#include <algorithm>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

bool flag(const Value* v) { return v && truth(*v); }
bool given(const Value* v) { return v && !v->is_none(); }

Value length_filter(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "length", call, {});
  return Value::of_int(Int(length(rt, v)));
}

Value list_filter(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "list", call, {});
  return rt.list(collect(rt, v));
}

Value default_filter(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "default", call, {"default_value", "boolean"});
  if (v.is_undefined() || (flag(a[1]) && !truth(v))) return a[0] ? *a[0] : rt.text("");
  return v;
}

Value first(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "first", call, {});
  Cursor cursor(rt, v);
  Value item;
  return cursor.next(item) ? item : rt.undefined("No first item, sequence was empty.");
}

// The items from the back, for what Python's reversed() takes; otherwise false.
bool reversed_items(Runtime& rt, const Value& v, std::vector<Value>& out) {
  if (!is_iterable(v) || v.is(Kind::kIterator)) return false;
  out = collect(rt, v);
  std::reverse(out.begin(), out.end());
  return true;
}

Value last(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "last", call, {});
  if (v.is_sequence() && !v.items().empty()) return v.items().back();
  std::vector<Value> items;
  if (!reversed_items(rt, v, items)) rt.error(std::string("last: '") + type_name(v) + "' object is not reversible");
  return items.empty() ? rt.undefined("No last item, sequence was empty.") : items[0];
}

Value reverse(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "reverse", call, {});
  if (v.is_string()) {
    const Value step = Value::of_int(-1);
    const Value text = get_slice(rt, v, Value::none(), Value::none(), step);
    return text;
  }
  std::vector<Value> items;
  if (!reversed_items(rt, v, items)) {
    items = collect(rt, v);
    std::reverse(items.begin(), items.end());
    return rt.list(std::move(items));
  }
  const Value held = rt.list(std::move(items));
  return rt.iterator(
      [held, at = size_t{0}](Value& out) mutable {
        if (at >= held.items().size()) return false;
        out = held.items()[at++];
        return true;
      },
      "list_reverseiterator");
}

Value items(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "items", call, {});
  return rt.iterator([&rt, v, at = size_t{0}](Value& out) mutable {
    if (v.is_undefined()) return false;
    if (!v.is(Kind::kDict)) rt.error(std::string("items: can only get item pairs from a mapping, got ") + type_name(v));
    const auto& entries = v.dict().entries;
    if (at >= entries.size()) return false;
    out = rt.tuple({entries[at].first, entries[at].second});
    at++;
    return true;
  });
}

struct Keyed {
  Value key, item;
};

std::vector<Value> sorted(Runtime& rt, std::vector<Keyed> keyed, bool descending) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return descending ? less(rt, b.key, a.key) : less(rt, a.key, b.key);
  });
  std::vector<Value> out;
  for (Keyed& k : keyed) out.push_back(std::move(k.item));
  return out;
}

Value dict_sort(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "dictsort", call, {"case_sensitive", "by", "reverse"});
  const std::string by = a[1] ? to_str(rt, *a[1]) : "key";
  if (by != "key" && by != "value") rt.error("dictsort: can only sort by 'key' or 'value', got " + text_repr(by));
  if (v.is_undefined()) rt.undefined_error(v);
  if (!v.is(Kind::kDict)) rt.error(std::string("dictsort: needs a mapping, got ") + type_name(v));
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : v.dict().entries) {
    const Value& sort_key = by == "key" ? key : value;
    keyed.push_back({flag(a[0]) ? sort_key : without_case(rt, sort_key), rt.tuple({key, value})});
  }
  return rt.list(sorted(rt, std::move(keyed), flag(a[2])));
}

// The sort key for "a.b,c": a list with one value for each path.
Value sort_key(Runtime& rt, const Value& item, const Value* attribute, bool case_sensitive) {
  std::vector<Value> keys;
  if (attribute && attribute->is_string()) {
    std::string_view rest = attribute->str();
    while (true) {
      const size_t comma = std::min(rest.find(','), rest.size());
      keys.push_back(get_path(rt, item, rt.text(std::string(rest.substr(0, comma)))));
      if (comma == rest.size()) break;
      rest = rest.substr(comma + 1);
    }
  } else {
    keys.push_back(get_path(rt, item, attribute ? *attribute : Value::none()));
  }
  if (!case_sensitive) {
    for (Value& key : keys) key = without_case(rt, key);
  }
  return keys.size() == 1 ? keys[0] : rt.list(std::move(keys));
}

Value sort(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "sort", call, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> keyed;
  for (Value& item : collect(rt, v)) {
    Value key = sort_key(rt, item, a[2], flag(a[1]));
    keyed.push_back({std::move(key), std::move(item)});
  }
  return rt.list(sorted(rt, std::move(keyed), flag(a[0])));
}

Value path_key(Runtime& rt, const Value& item, const Value* attribute, bool case_sensitive) {
  const Value key = get_path(rt, item, attribute ? *attribute : Value::none());
  return case_sensitive ? key : without_case(rt, key);
}

Value unique(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "unique", call, {"case_sensitive", "attribute"});
  const bool case_sensitive = flag(a[0]);
  const Value attribute = a[1] ? *a[1] : Value::none();
  Dict* seen = nullptr;
  rt.dict(&seen);
  auto cursor = std::make_shared<Cursor>(rt, v);
  return rt.iterator([&rt, cursor, seen, case_sensitive, attribute](Value& out) {
    while (cursor->next(out)) {
      const Value key = path_key(rt, out, &attribute, case_sensitive);
      if (dict_find(rt, *seen, key)) continue;
      dict_set(rt, *seen, key, Value::none());
      return true;
    }
    return false;
  });
}

template <bool largest>
Value extreme(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, largest ? "max" : "min", call, {"case_sensitive", "attribute"});
  Cursor cursor(rt, v);
  Value best, item;
  if (!cursor.next(best)) return rt.undefined("No aggregated item, sequence was empty.");
  Value best_key = path_key(rt, best, a[1], flag(a[0]));
  while (cursor.next(item)) {
    Value key = path_key(rt, item, a[1], flag(a[0]));
    if (!(largest ? less(rt, best_key, key) : less(rt, key, best_key))) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value sum(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "sum", call, {"attribute", "start"});
  Value total = a[1] ? *a[1] : Value::of_int(0);
  if (total.is_string()) rt.error("sum: can't sum strings");
  Cursor cursor(rt, v);
  Value item;
  while (cursor.next(item)) {
    if (given(a[0])) item = get_path(rt, item, *a[0]);
    total = arithmetic(rt, Arithmetic::kAdd, total, item);
  }
  return total;
}

Value group_by(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "groupby", call, {"attribute", "default", "case_sensitive"}, 1);
  const bool case_sensitive = flag(a[2]);
  const Value* other = given(a[1]) ? a[1] : nullptr;
  const auto key_of = [&](const Value& item) {
    const Value key = get_path(rt, item, *a[0], other);
    return case_sensitive ? key : without_case(rt, key);
  };
  std::vector<Keyed> keyed;
  for (Value& item : collect(rt, v)) {
    Value key = key_of(item);
    keyed.push_back({std::move(key), std::move(item)});
  }
  std::vector<Value> groups, members;
  const auto close = [&](const Value& key) {
    const Value shown = case_sensitive ? key : get_path(rt, members[0], *a[0], other);
    Value group = rt.tuple({shown, rt.list(std::exchange(members, {}))});
    static_cast<List*>(group.object)->is_group = true;
    groups.push_back(std::move(group));
  };
  Value open_key;
  for (Value& item : sorted(rt, std::move(keyed), false)) {
    Value key = key_of(item);
    if (!members.empty() && !equal(rt, key, open_key)) close(open_key);
    open_key = std::move(key);
    members.push_back(std::move(item));
  }
  if (!members.empty()) close(open_key);
  return rt.list(std::move(groups));
}

Int want_count(Runtime& rt, const Value& v, const char* filter) {
  if (!v.is_integral()) rt.error(std::string(filter) + ": must be int, not " + type_name(v));
  return v.as_int();
}

Value batch(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "batch", call, {"linecount", "fill_with"}, 1);
  const Int size = want_count(rt, *a[0], "batch");
  std::vector<Value> rows, row;
  for (Value& item : collect(rt, v)) {
    if (Int(row.size()) == size) rows.push_back(rt.list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (given(a[1]) && Int(row.size()) < size) {
      rt.check_size(size > 1 << 24 ? SIZE_MAX : size_t(size) * sizeof(Value));
      row.resize(size_t(size), *a[1]);
    }
    rows.push_back(rt.list(std::move(row)));
  }
  const Value held = rt.list(std::move(rows));
  return rt.iterator([held, at = size_t{0}](Value& out) mutable {
    if (at >= held.items().size()) return false;
    out = held.items()[at++];
    return true;
  });
}

Value slice(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "slice", call, {"slices", "fill_with"}, 1);
  const Int slices = want_count(rt, *a[0], "slice");
  const std::vector<Value> all = collect(rt, v);
  if (slices == 0) rt.error("slice: integer division or modulo by zero");
  const Int size = Int(all.size()), each = slices > 0 ? size / slices : 0, longer = slices > 0 ? size % slices : 0;
  std::vector<Value> rows;
  size_t at = 0;
  for (Int i = 0; i < slices; i++) {
    rt.step();
    const size_t n = size_t(each + (i < longer));
    std::vector<Value> row(all.begin() + long(at), all.begin() + long(at + n));
    at += n;
    if (given(a[1]) && i >= longer) row.push_back(*a[1]);
    rows.push_back(rt.list(std::move(row)));
  }
  const Value held = rt.list(std::move(rows));
  return rt.iterator([held, next = size_t{0}](Value& out) mutable {
    if (next >= held.items().size()) return false;
    out = held.items()[next++];
    return true;
  });
}

Value attr(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "attr", call, {"name"}, 1);
  if (v.is_undefined()) rt.undefined_error(v);
  if (!a[0]->is_string()) rt.error(std::string("attr: attribute name must be string, not ") + type_name(*a[0]));
  Value out;
  if (find_own_attribute(rt, v, a[0]->str(), out)) return out;
  return rt.undefined(text_repr(std::string(type_name(v)) + " object") + " has no attribute " + text_repr(a[0]->str()));
}

const Value& want_name(Runtime& rt, const Call& call, size_t at, const char* what) {
  if (at >= call.args.size()) rt.error(what);
  return call.args[at];
}

Value map(Runtime& rt, const Value& v, Call& call) {
  auto kept = std::make_shared<Call>(call);
  std::shared_ptr<Cursor> cursor;
  FilterFunction filter = nullptr;
  return rt.iterator([&rt, v, kept, cursor, filter](Value& out) mutable {
    if (!cursor) {
      if (!truth(v)) return false;
      cursor = std::make_shared<Cursor>(rt, v);
      if (!kept->args.empty() || !kept->find("attribute")) {
        const Value& name = want_name(rt, *kept, 0, "map requires a filter argument");
        filter = name.is_string() ? find_filter(name.str()) : nullptr;
        if (!filter) rt.error("no filter named " + to_repr(rt, name));
        kept->args.erase(kept->args.begin());
      } else {
        for (const auto& [name, value] : kept->named) {
          if (name != "attribute" && name != "default") rt.error("map: unexpected keyword argument " + text_repr(name));
        }
      }
    }
    if (!cursor->next(out)) return false;
    if (filter) {
      Call arguments = *kept;
      out = filter(rt, out, arguments);
    } else {
      const Value* other = kept->find("default");
      out = get_path(rt, out, *kept->find("attribute"), other && !other->is_none() ? other : nullptr);
    }
    return true;
  });
}

template <bool keep, bool by_attribute>
Value select(Runtime& rt, const Value& v, Call& call) {
  auto kept = std::make_shared<Call>(call);
  std::shared_ptr<Cursor> cursor;
  TestFunction test = nullptr;
  Value path;
  return rt.iterator([&rt, v, kept, cursor, test, path](Value& out) mutable {
    if (!cursor) {
      if (!truth(v)) return false;
      cursor = std::make_shared<Cursor>(rt, v);
      if (by_attribute) {
        path = want_name(rt, *kept, 0, "Missing parameter for attribute name");
        kept->args.erase(kept->args.begin());
      }
      if (!kept->args.empty()) {
        const Value name = kept->args[0];
        test = name.is_string() ? find_test(name.str()) : nullptr;
        if (!test) rt.error("no test named " + to_repr(rt, name));
        kept->args.erase(kept->args.begin());
      }
    }
    while (cursor->next(out)) {
      const Value subject = by_attribute ? get_path(rt, out, path) : out;
      Call arguments = *kept;
      if ((test ? test(rt, subject, arguments) : truth(subject)) == keep) return true;
    }
    return false;
  });
}

constexpr FilterEntry kFilters[] = {
    {"length", length_filter},
    {"count", length_filter},
    {"list", list_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"first", first},
    {"last", last},
    {"reverse", reverse},
    {"items", items},
    {"dictsort", dict_sort},
    {"sort", sort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"groupby", group_by},
    {"batch", batch},
    {"slice", slice},
    {"attr", attr},
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
};

}  // namespace

std::span<const FilterEntry> sequence_filters() { return kFilters; }

FilterFunction find_filter(std::string_view name) {
  for (const auto table : {text_filters(), sequence_filters(), number_filters()}) {
    for (const FilterEntry& e : table) {
      if (e.name == name) return e.function;
    }
  }
  return nullptr;
}

Value get_path(Runtime& rt, const Value& item, const Value& path, const Value* default_value) {
  if (path.is_none()) return item;
  Value v = item;
  const auto follow = [&](const Value& key) {
    rt.step();  // a path has as many parts as it has dots
    v = get_item(rt, v, key);
    if (default_value && v.is_undefined()) v = *default_value;
  };
  if (!path.is_string()) {
    follow(path);
    return v;
  }
  std::string_view rest = path.str();
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool number =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
    Int index = 0;
    for (const char c : number ? part : std::string_view()) index = index * 10 + (c - '0');
    follow(number ? Value::of_int(index) : rt.text(std::string(part)));
    if (dot == rest.size()) return v;
    rest = rest.substr(dot + 1);
  }
}

Value without_case(Runtime& rt, const Value& v) {
  if (!v.is_string()) return v;
  rt.reserve(v.str().size() * 3);
  return rt.text(to_lower(v.str()), v.is_markup());
}

}  // namespace mettle::jinja

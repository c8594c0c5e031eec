// Expressions of the interpreter.
#include "text/jinja_interpreter.h"
#include "text/jinja_print.h"

namespace mettle::jinja {

Value Interpreter::evaluate(const Expr& e, Scope& scope) {
  const auto deeper = rt_.enter_node();
  rt_.step();
  rt_.line = e.line;
  return evaluate_node(e, scope);
}

Value Interpreter::evaluate_node(const Expr& e, Scope& scope) {
  const auto operand = [&](size_t i) { return evaluate(*e.args[i], scope); };
  switch (e.kind) {
    case ExprKind::kConstant:
      return e.constant;
    case ExprKind::kName:
      return name(e, scope);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      std::vector<Value> items;
      for (size_t i = 0; i < e.args.size(); i++) items.push_back(operand(i));
      return e.kind == ExprKind::kList ? rt_.list(std::move(items)) : rt_.tuple(std::move(items));
    }
    case ExprKind::kDict:
      return dict(e, scope);
    case ExprKind::kArithmetic: {
      const Value left = operand(0);
      return arithmetic(rt_, e.op, left, operand(1));
    }
    case ExprKind::kUnary:
      return negate(rt_, operand(0), e.minus);
    case ExprKind::kConcat:
      return concat(e, scope);
    case ExprKind::kCompare:
      return compare(e, scope);
    case ExprKind::kNot:
      return Value::of(!truth(operand(0)));
    case ExprKind::kAnd: {
      Value left = operand(0);
      return truth(left) ? operand(1) : left;
    }
    case ExprKind::kOr: {
      Value left = operand(0);
      return truth(left) ? left : operand(1);
    }
    case ExprKind::kIf:
      if (truth(operand(1))) return operand(0);
      if (e.args[2]) return operand(2);
      return rt_.undefined("the inline if-expression on line " + std::to_string(e.line) +
                           " evaluated to false and no else section was defined");
    case ExprKind::kAttribute:
      return get_attribute(rt_, operand(0), e.name);
    case ExprKind::kItem: {
      const Value object = operand(0);
      return get_item(rt_, object, operand(1));
    }
    case ExprKind::kSlice:
      return slice(e, scope);
    case ExprKind::kCall:
      return call(e, scope);
    case ExprKind::kFilter:
      return filter(e, scope);
    case ExprKind::kTest:
      return test(e, scope);
  }
  return {};
}

Value Interpreter::name(const Expr& e, Scope& scope) {
  for (Scope* s = &scope; s; s = s->outer) {
    rt_.step(s->variables.size() / 64);
    if (const Value* v = s->find(e.symbol)) return *v;
  }
  if (const BuiltinFunction f = find_global(e.name)) return rt_.function(e.name, f);
  return rt_.undefined(text_repr(e.name) + " is undefined");
}

Value Interpreter::dict(const Expr& e, Scope& scope) {
  Dict* out = nullptr;
  const Value v = rt_.dict(&out);
  for (size_t i = 0; i < e.args.size(); i += 2) {
    const Value key = evaluate(*e.args[i], scope);
    dict_set(rt_, *out, key, evaluate(*e.args[i + 1], scope));
  }
  return v;
}

Value Interpreter::concat(const Expr& e, Scope& scope) {
  std::string out;
  for (const ExprPtr& a : e.args) {
    const Value v = evaluate(*a, scope);
    if (v.is_string()) {
      rt_.reserve(out.size() + v.str().size());
      out += v.str();
    } else {
      out += to_str(rt_, v);
    }
  }
  return rt_.text(std::move(out));
}

Value Interpreter::compare(const Expr& e, Scope& scope) {
  Value left = evaluate(*e.args[0], scope);
  for (size_t i = 0; i < e.comparisons.size(); i++) {
    Value right = evaluate(*e.args[i + 1], scope);
    bool holds = false;
    switch (e.comparisons[i]) {
      case Comparison::kEqual:
        holds = equal(rt_, left, right);
        break;
      case Comparison::kUnequal:
        holds = !equal(rt_, left, right);
        break;
      case Comparison::kLess:
        holds = ordered(rt_, Order::kLess, left, right);
        break;
      case Comparison::kLessEqual:
        holds = ordered(rt_, Order::kLessEqual, left, right);
        break;
      case Comparison::kGreater:
        holds = ordered(rt_, Order::kGreater, left, right);
        break;
      case Comparison::kGreaterEqual:
        holds = ordered(rt_, Order::kGreaterEqual, left, right);
        break;
      case Comparison::kIn:
        holds = contains(rt_, right, left);
        break;
      case Comparison::kNotIn:
        holds = !contains(rt_, right, left);
        break;
    }
    if (!holds) return Value::of(false);
    left = std::move(right);
  }
  return Value::of(true);
}

Value Interpreter::slice(const Expr& e, Scope& scope) {
  const auto bound = [&](size_t i) { return e.args[i] ? evaluate(*e.args[i], scope) : Value::none(); };
  const Value object = evaluate(*e.args[0], scope);
  const Value start = bound(1), stop = bound(2);
  return get_slice(rt_, object, start, stop, bound(3));
}

Call Interpreter::arguments(const Expr& e, Scope& scope, size_t first) {
  Call call;
  for (size_t i = first; i < e.args.size(); i++) call.args.push_back(evaluate(*e.args[i], scope));
  if (e.rest) {
    for (Value& v : collect(rt_, evaluate(*e.rest, scope))) call.args.push_back(std::move(v));
  }
  for (const auto& [name, value] : e.named) call.named.emplace_back(name, evaluate(*value, scope));
  if (e.rest_named) {
    const Value rest = evaluate(*e.rest_named, scope);
    if (!rest.is(Kind::kDict))
      rt_.error(std::string("the argument after ** must be a mapping, not ") + type_name(rest));
    for (const auto& [key, value] : rest.dict().entries) {
      if (!key.is_string()) rt_.error("keywords must be strings");
      rt_.walk_items(call.named.size());
      if (call.find(key.str())) rt_.error("got multiple values for keyword argument " + text_repr(key.str()));
      call.named.emplace_back(key.str(), value);
    }
  }
  return call;
}

Value Interpreter::call(const Expr& e, Scope& scope, const Value* caller) {
  const Expr& function = *e.args[0];
  Value callee;
  if (function.kind == ExprKind::kAttribute) {
    // A method called at once needs no object, which would keep its string until the render ends.
    const Value self = evaluate(*function.args[0], scope);
    if (const Method method = method_of(self, function.name)) {
      Call call = arguments(e, scope, 1);
      if (caller) call.named.emplace_back("caller", *caller);
      rt_.line = e.line;
      return method(rt_, self, call);
    }
    callee = get_attribute(rt_, self, function.name);
  } else {
    callee = evaluate(function, scope);
  }
  Call call = arguments(e, scope, 1);
  if (caller) call.named.emplace_back("caller", *caller);
  rt_.line = e.line;
  if (callee.is_undefined()) rt_.undefined_error(callee);
  if (!callee.is(Kind::kCallable)) rt_.error(std::string("'") + type_name(callee) + "' object is not callable");
  return callee.callable().call(rt_, call);
}

Value Interpreter::filter(const Expr& e, Scope& scope) {
  const Value input = e.args[0] ? evaluate(*e.args[0], scope) : *filter_input_;
  Call call = arguments(e, scope, 1);
  rt_.line = e.line;
  if (!e.filter) rt_.error("no filter named " + text_repr(e.name));
  return e.filter(rt_, input, call);
}

Value Interpreter::test(const Expr& e, Scope& scope) {
  const Value input = evaluate(*e.args[0], scope);
  Call call = arguments(e, scope, 1);
  rt_.line = e.line;
  if (!e.test) rt_.error("no test named " + text_repr(e.name));
  return Value::of(e.test(rt_, input, call));
}

}  // namespace mettle::jinja

#include "text/jinja_interpreter.h"

#include <deque>
#include <optional>

#include "text/jinja_print.h"

namespace mettle::jinja {

Value* Scope::find(Symbol symbol) {
  for (auto& [s, value] : variables) {
    if (s == symbol) return &value;
  }
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  if (Value* there = find(symbol))
    *there = std::move(value);
  else
    variables.emplace_back(symbol, std::move(value));
}

namespace {

// A scope on the stack, or among the render's objects when a macro inside may outlive it.
class ScopeHolder {
 public:
  ScopeHolder(Runtime& rt, Scope* outer, bool captured) : scope_(captured ? rt.make<Scope>(256) : &local_) {
    scope_->outer = outer;
  }
  Scope& operator*() { return *scope_; }

 private:
  Scope local_;
  Scope* scope_;
};

}  // namespace

struct Macro : Callable {
  Interpreter* interpreter = nullptr;
  const Signature* signature = nullptr;
  const Body* body = nullptr;
  Scope* outer = nullptr;

  std::string name() const override { return "<Macro " + text_repr(signature->name) + ">"; }
  bool attribute(Runtime& rt, std::string_view name, Value& out) override {
    if (name != "name") return false;
    out = rt.text(signature->name);
    return true;
  }

  Value call(Runtime& rt, Call& call) override {
    const auto deeper = rt.enter_call();
    ScopeHolder holder(rt, outer, signature->captures);
    Scope& scope = *holder;
    bind_arguments(rt, call, scope);
    std::string text;
    interpreter->execute(*body, scope, text);
    return rt.text(std::move(text));
  }

 private:
  void bind_arguments(Runtime& rt, Call& call, Scope& scope) {
    const Program& program = interpreter->program_;
    const auto& parameters = signature->parameters;
    std::vector<bool> used(call.named.size());
    const auto take = [&](const std::string& name) -> const Value* {
      rt.walk_items(call.named.size());
      for (size_t i = 0; i < call.named.size(); i++) {
        if (call.named[i].first != name || used[i]) continue;
        used[i] = true;
        return &call.named[i].second;
      }
      return nullptr;
    };
    for (size_t i = 0; i < parameters.size(); i++) {
      const Parameter& p = parameters[i];
      const Value* given = i < call.args.size() ? &call.args[i] : take(p.name);
      if (given)
        scope.set(p.symbol, *given);
      else if (p.default_value)
        scope.set(p.symbol, interpreter->evaluate(*p.default_value, scope));
      else
        scope.set(p.symbol, rt.undefined("parameter " + text_repr(p.name) + " was not provided"));
    }
    if (signature->caller) {
      const Value* caller = take("caller");
      scope.set(program.caller, caller ? *caller : rt.undefined("No caller defined"));
    }
    Dict* rest = nullptr;
    const Value kwargs = rt.dict(&rest);
    for (size_t i = 0; i < call.named.size(); i++) {
      if (used[i]) continue;
      if (!signature->kwargs)
        rt.error("macro " + text_repr(signature->name) + " takes no keyword argument " +
                 text_repr(call.named[i].first));
      dict_set(rt, *rest, rt.text(call.named[i].first), call.named[i].second);
    }
    if (signature->kwargs) scope.set(program.kwargs, kwargs);
    if (signature->varargs) {
      const size_t n = std::min(parameters.size(), call.args.size());
      scope.set(program.varargs, rt.tuple({call.args.begin() + long(n), call.args.end()}));
    } else if (call.args.size() > parameters.size()) {
      rt.error("macro " + text_repr(signature->name) + " takes not more than " + std::to_string(parameters.size()) +
               " argument(s), got " + std::to_string(call.args.size()));
    }
  }
};

// The `loop` variable. Like Jinja2's it looks one item ahead only when asked to.
struct Loop : Callable {
  Interpreter* interpreter = nullptr;
  const Stmt* statement = nullptr;
  Scope* scope = nullptr;
  std::function<bool(Value&)> pull;
  std::deque<Value> drained;  // items read ahead to know the length
  std::optional<Value> before, current, after;
  std::optional<Value> last_changed;
  bool ended = false, pulling = false;
  Runtime* rt = nullptr;
  Int index0 = -1;
  size_t depth0 = 0;

  bool pull_one(Value& out) {
    if (!pull) return false;
    if (pulling) rt->error("a loop asks itself for its next item");
    pulling = true;
    const bool more = pull(out);
    pulling = false;
    return more;
  }
  bool read(Value& out) {
    if (drained.empty()) return pull_one(out);
    out = std::move(drained.front());
    drained.pop_front();
    return true;
  }
  bool peek() {
    Value v;
    if (after || ended) return after.has_value();
    if (read(v))
      after = std::move(v);
    else
      ended = true;
    return after.has_value();
  }
  bool advance() {
    if (!peek()) return false;
    before = std::move(current);
    current = std::move(after);
    after.reset();
    index0++;
    return true;
  }
  Int length() {
    Value v;
    while (pull_one(v)) drained.push_back(v);
    pull = nullptr;
    return index0 + 1 + Int(after.has_value()) + Int(drained.size());
  }

  std::string name() const override { return "<LoopContext>"; }

  bool attribute(Runtime& rt, std::string_view name, Value& out) override {
    if (name == "index")
      out = Value::of_int(index0 + 1);
    else if (name == "index0")
      out = Value::of_int(index0);
    else if (name == "first")
      out = Value::of(index0 == 0);
    else if (name == "last")
      out = Value::of(!peek());
    else if (name == "length")
      out = Value::of_int(length());
    else if (name == "revindex")
      out = Value::of_int(length() - index0);
    else if (name == "revindex0")
      out = Value::of_int(length() - index0 - 1);
    else if (name == "depth")
      out = Value::of_int(Int(depth0) + 1);
    else if (name == "depth0")
      out = Value::of_int(Int(depth0));
    else if (name == "previtem")
      out = before ? *before : rt.undefined("there is no previous item");
    else if (name == "nextitem")
      out = peek() ? *after : rt.undefined("there is no next item");
    else if (name == "cycle")
      out = method(rt, "cycle");
    else if (name == "changed")
      out = method(rt, "changed");
    else
      return false;
    return true;
  }

  Value call(Runtime& rt, Call& call) override {
    if (!scope) rt.error("the loop has ended");
    if (!statement->recursive) rt.error("the loop must have the 'recursive' marker to be called");
    const auto a = bind(rt, "loop", call, {"iterable"}, 1);
    const auto deeper = rt.enter_call();
    std::string text;
    interpreter->run_for(*statement, *a[0], *scope, text, depth0 + 1);
    return rt.text(std::move(text));
  }

 private:
  struct LoopMethod : Callable {
    Loop* loop = nullptr;
    std::string its_name;
    std::string name() const override { return "<LoopContext." + its_name + ">"; }
    Value call(Runtime& rt, Call& call) override {
      if (!call.named.empty()) rt.error(its_name + ": has no argument '" + call.named[0].first + "'");
      if (its_name == "cycle") {
        if (call.args.empty()) rt.error("no items for cycling given");
        return call.args[size_t(loop->index0 % Int(call.args.size()))];
      }
      Value now = rt.tuple(call.args);
      if (loop->last_changed && equal(rt, *loop->last_changed, now)) return Value::of(false);
      loop->last_changed = std::move(now);
      return Value::of(true);
    }
  };

  Value method(Runtime& rt, const char* name) {
    auto* m = rt.make<LoopMethod>();
    m->loop = this;
    m->its_name = name;
    return Value::of(Kind::kCallable, m);
  }
};

std::string Interpreter::run(const std::vector<std::pair<Symbol, Value>>& variables) {
  Scope* root = rt_.make<Scope>();
  root->variables = variables;
  // What the template sets hides a variable of the same name and leaves it to be seen until then.
  Scope* top = rt_.make<Scope>();
  top->outer = root;
  std::string out;
  execute(program_.body, *top, out);
  return out;
}

void Interpreter::append(std::string& out, std::string_view text) {
  rt_.walk_bytes(text.size());
  rt_.check_output(out.size() + text.size());
  out += text;
}

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope, std::string& out) {
  for (const auto& s : body) {
    const Flow flow = execute(*s, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute(const Stmt& s, Scope& scope, std::string& out) {
  const auto deeper = rt_.enter_node();
  rt_.step();
  rt_.line = s.line;
  switch (s.kind) {
    case StmtKind::kText:
      append(out, s.text);
      break;
    case StmtKind::kPrint:
      print(s, scope, out);
      break;
    case StmtKind::kIf:
      return run_if(s, scope, out);
    case StmtKind::kFor:
      return run_for(s, evaluate(*s.exprs[0], scope), scope, out, 0);
    case StmtKind::kSet:
      assign(s.targets[0], evaluate(*s.exprs[0], scope), scope);
      break;
    case StmtKind::kSetBlock:
      return run_set_block(s, scope);
    case StmtKind::kMacro:
      rt_.step(scope.variables.size() / 64);
      scope.set(s.symbol, macro(s.signature, s.bodies[0], scope));
      break;
    case StmtKind::kCallBlock:
      run_call_block(s, scope, out);
      break;
    case StmtKind::kFilterBlock:
      return run_filter_block(s, scope, out);
    case StmtKind::kScope:
    case StmtKind::kWith:
      return run_scope(s, scope, out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::print(const Stmt& s, Scope& scope, std::string& out) {
  for (const ExprPtr& e : s.exprs) {
    const Value v = evaluate(*e, scope);
    if (v.is_string())
      append(out, v.str());
    else
      append(out, to_str(rt_, v));
  }
}

Interpreter::Flow Interpreter::run_if(const Stmt& s, Scope& scope, std::string& out) {
  for (size_t i = 0; i < s.exprs.size(); i++) {
    if (truth(evaluate(*s.exprs[i], scope))) return execute(s.bodies[i], scope, out);
  }
  return s.bodies.size() > s.exprs.size() ? execute(s.bodies.back(), scope, out) : Flow::kNormal;
}

Interpreter::Flow Interpreter::run_for(const Stmt& s, const Value& over, Scope& scope, std::string& out, size_t depth) {
  auto* loop = rt_.make<Loop>();
  loop->interpreter = this;
  loop->statement = &s;
  loop->scope = &scope;
  loop->rt = &rt_;
  loop->depth0 = depth;
  Cursor cursor(rt_, over);
  if (s.condition) {
    loop->pull = [&](Value& item) {
      while (cursor.next(item)) {
        ScopeHolder holder(rt_, &scope, false);
        assign(s.targets[0], item, *holder);
        if (truth(evaluate(*s.condition, *holder))) return true;
      }
      return false;
    };
  } else {
    loop->pull = [&](Value& item) { return cursor.next(item); };
  }
  // The loop variable may be kept beyond the loop; what it reads from may not.
  struct Closer {
    Loop* loop;
    ~Closer() {
      loop->pull = nullptr;
      loop->scope = nullptr;
    }
  } closer{loop};
  ScopeHolder shared(rt_, &scope, false);
  bool completed = false;  // as in Jinja2, an iteration that breaks or continues does not count for the else
  while (loop->advance()) {
    std::optional<ScopeHolder> own;
    if (s.captures) own.emplace(rt_, &scope, true);
    Scope& inner = own ? **own : *shared;
    inner.variables.clear();
    inner.set(program_.loop, Value::of(Kind::kCallable, loop));
    assign(s.targets[0], *loop->current, inner);
    const Flow flow = execute(s.bodies[0], inner, out);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) completed = true;
  }
  if (!completed && s.bodies.size() > 1) {
    ScopeHolder inner(rt_, &scope, true);
    return execute(s.bodies[1], *inner, out);
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_set_block(const Stmt& s, Scope& scope) {
  ScopeHolder inner(rt_, &scope, s.captures);
  std::string text;
  const Flow flow = execute(s.bodies[0], *inner, text);
  if (flow != Flow::kNormal) return flow;
  Value value = rt_.text(std::move(text));
  if (s.condition) {
    const Value* outer = std::exchange(filter_input_, &value);
    value = evaluate(*s.condition, *inner);
    filter_input_ = outer;
  }
  assign(s.targets[0], value, scope);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_filter_block(const Stmt& s, Scope& scope, std::string& out) {
  ScopeHolder inner(rt_, &scope, s.captures);
  std::string text;
  const Flow flow = execute(s.bodies[0], *inner, text);
  if (flow != Flow::kNormal) return flow;
  const Value value = rt_.text(std::move(text));
  const Value* outer = std::exchange(filter_input_, &value);
  const Value filtered = evaluate(*s.exprs[0], *inner);
  filter_input_ = outer;
  if (!filtered.is_string()) rt_.error(std::string("a filter block must give str, got ") + type_name(filtered));
  append(out, filtered.str());
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_scope(const Stmt& s, Scope& scope, std::string& out) {
  ScopeHolder inner(rt_, &scope, s.captures);
  std::vector<Value> values;
  for (const ExprPtr& e : s.exprs) values.push_back(evaluate(*e, scope));
  for (size_t i = 0; i < values.size(); i++) assign(s.targets[i], values[i], *inner);
  return execute(s.bodies[0], *inner, out);
}

void Interpreter::run_call_block(const Stmt& s, Scope& scope, std::string& out) {
  const Value caller = macro(s.signature, s.bodies[0], scope);
  append(out, to_str(rt_, call(*s.exprs[0], scope, &caller)));
}

Value Interpreter::macro(const Signature& signature, const Body& body, Scope& scope) {
  auto* m = rt_.make<Macro>();
  m->interpreter = this;
  m->signature = &signature;
  m->body = &body;
  m->outer = &scope;
  return Value::of(Kind::kCallable, m);
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  switch (target.kind) {
    case Target::Kind::kName:
      rt_.step(scope.variables.size() / 64);
      scope.set(target.symbol, value);
      break;
    case Target::Kind::kAttribute: {
      Value* space = nullptr;
      for (Scope* s = &scope; s && !space; s = s->outer) {
        rt_.step(s->variables.size() / 64);
        space = s->find(target.symbol);
      }
      if (!space || !space->is(Kind::kNamespace)) rt_.error("cannot assign attribute on non-namespace object");
      dict_set(rt_, space->space().attributes, rt_.text(target.attribute), value);
      break;
    }
    case Target::Kind::kTuple: {
      const std::vector<Value> items = collect(rt_, value);
      if (items.size() != target.items.size())
        rt_.error("cannot unpack: expected " + std::to_string(target.items.size()) + " values, got " +
                  std::to_string(items.size()));
      for (size_t i = 0; i < items.size(); i++) assign(target.items[i], items[i], scope);
    }
  }
}

}  // namespace mettle::jinja

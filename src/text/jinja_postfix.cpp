// What follows a value: attributes, subscripts and slices, calls, filters, tests.
#include "text/jinja_parser.h"
#include "text/jinja_print.h"

namespace mettle::jinja {
namespace {

// Each is compared with all before it.
constexpr size_t kMaxNames = 1000;

}  // namespace

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  while (true) {
    if (current().is_operator(".") || current().is_operator("["))
      e = subscript(std::move(e));
    else if (current().is_operator("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExprPtr ExpressionParser::filtered(ExprPtr e) {
  while (true) {
    if (current().is_operator("|"))
      e = filters(std::move(e));
    else if (current().is_name("is"))
      e = test(std::move(e));
    else if (current().is_operator("("))
      e = call(std::move(e));
    else
      return e;
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
  const Token token = next();
  if (token.text == "[") {
    ExprPtr e = subscribed(std::move(object));
    expect_operator("]");
    return e;
  }
  const Token name = next();
  if (name.kind == TokenKind::kInteger)
    return binary(ExprKind::kItem, std::move(object), constant(Value::of_int(name.integer), name.line), token.line);
  if (name.kind != TokenKind::kName) syntax_error(name.line, "expected a name or a number behind '.'");
  ExprPtr e = make(ExprKind::kAttribute, token.line);
  e->name = name.text;
  e->args.push_back(std::move(object));
  return done(std::move(e));
}

ExprPtr ExpressionParser::subscribed(ExprPtr object) {
  const int line = current().line;
  std::vector<ExprPtr> keys;
  while (!current().is_operator("]")) {
    ExprPtr bounds[3];
    bool slice = false;
    if (!current().is_operator(":")) bounds[0] = expression();
    const auto ends = [&] { return current().is_operator("]") || current().is_operator(","); };
    if (skip_operator(":")) {
      slice = true;
      if (!ends() && !current().is_operator(":")) bounds[1] = expression();
      if (skip_operator(":") && !ends()) bounds[2] = expression();
    }
    if (slice) {
      if (!keys.empty() || current().is_operator(",")) error("a slice must stand alone between the brackets");
      ExprPtr e = make(ExprKind::kSlice, line);
      e->args.push_back(std::move(object));
      for (ExprPtr& b : bounds) e->args.push_back(std::move(b));
      return done(std::move(e));
    }
    keys.push_back(std::move(bounds[0]));
    if (current().is_operator("]")) break;
    expect_operator(",");
    if (current().is_operator("]")) unexpected("an expression");
  }
  if (keys.size() == 1) return binary(ExprKind::kItem, std::move(object), std::move(keys[0]), line);
  ExprPtr key = make(ExprKind::kTuple, line);
  key->args = std::move(keys);
  return binary(ExprKind::kItem, std::move(object), done(std::move(key)), line);
}

ExprPtr ExpressionParser::call(ExprPtr callee) {
  ExprPtr e = make(ExprKind::kCall, current().line);
  e->args.push_back(std::move(callee));
  call_arguments(*e);
  return done(std::move(e));
}

void ExpressionParser::call_arguments(Expr& into) {
  const Nested nested(*this);
  expect_operator("(");
  const auto ensure = [&](bool ok) {
    if (!ok) error("invalid syntax for function call expression");
  };
  for (bool first = true; !current().is_operator(")"); first = false) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    if (skip_operator("*")) {
      ensure(!into.rest && !into.rest_named);
      into.rest = expression();
    } else if (skip_operator("**")) {
      ensure(!into.rest_named);
      into.rest_named = expression();
    } else if (current().kind == TokenKind::kName && look().is_operator("=")) {
      ensure(!into.rest_named);
      if (into.named.size() >= kMaxNames)
        error("a call must have at most " + std::to_string(kMaxNames) + " named arguments");
      std::string name = next().text;
      next();
      for (const auto& [other, value] : into.named) {
        if (other == name) error("keyword argument repeated: " + name);
      }
      into.named.emplace_back(std::move(name), expression());
    } else {
      ensure(!into.rest && !into.rest_named && into.named.empty());
      into.args.push_back(expression());
    }
  }
  expect_operator(")");
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_any_name();
  while (skip_operator(".")) name += "." + expect_any_name();
  return name;
}

ExprPtr ExpressionParser::filters(ExprPtr value, bool inline_start) {
  bool first = inline_start;
  while (first || skip_operator("|")) {
    first = false;
    ExprPtr e = make(ExprKind::kFilter, current().line);
    e->name = dotted_name();
    e->args.push_back(std::move(value));
    if (current().is_operator("(")) call_arguments(*e);
    e->filter = find_filter(e->name);
    if (!e->filter && !conditional_) unknown_.push_back({e->line, "no filter named " + text_repr(e->name)});
    value = done(std::move(e));
  }
  return value;
}

ExprPtr ExpressionParser::test(ExprPtr value) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExprPtr e = make(ExprKind::kTest, line);
  e->name = dotted_name();
  e->args.push_back(std::move(value));
  const Token& t = current();
  const bool starts_value = t.kind == TokenKind::kName || t.kind == TokenKind::kString ||
                            t.kind == TokenKind::kInteger || t.kind == TokenKind::kFloat || t.is_operator("[") ||
                            t.is_operator("{");
  if (t.is_operator("(")) {
    call_arguments(*e);
  } else if (starts_value && !t.is_name("else") && !t.is_name("or") && !t.is_name("and")) {
    if (t.is_name("is")) error("tests cannot be chained with 'is'");
    e->args.push_back(postfix(primary()));
  }
  e->test = find_test(e->name);
  if (!e->test && !conditional_) unknown_.push_back({e->line, "no test named " + text_repr(e->name)});
  e = done(std::move(e));
  if (!negated) return e;
  ExprPtr n = make(ExprKind::kNot, line);
  n->args.push_back(std::move(e));
  return done(std::move(n));
}

}  // namespace mettle::jinja

// Operators in the order in which they bind, and what stands alone: names, constants, lists. jinja_postfix.cpp has what
// follows a value.
#include <algorithm>

#include "text/jinja_parser.h"

namespace mettle::jinja {
namespace {

// Left-leaning chains (a + b + c ...) cost the parser no depth, but evaluating and freeing them does.
constexpr int kMaxHeight = 1000;

std::shared_ptr<const Text> shared_text(std::string s) {
  return std::make_shared<const Text>(std::move(s), false, nullptr);
}

}  // namespace

ExpressionParser::ExpressionParser(std::string_view source, size_t max_depth)
    : tokens_(tokenize_template(source)), max_depth_(max_depth) {
  program_.loop = intern("loop");
  program_.caller = intern("caller");
  program_.varargs = intern("varargs");
  program_.kwargs = intern("kwargs");
}

ExpressionParser::Nested::Nested(ExpressionParser& p) : parser(p) {
  if (p.depth_ >= p.max_depth_) p.error("must nest at most " + std::to_string(p.max_depth_) + " levels deep");
  p.depth_++;
}

bool ExpressionParser::skip_operator(std::string_view sign) {
  if (!current().is_operator(sign)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

void ExpressionParser::expect_operator(std::string_view sign) {
  if (!skip_operator(sign)) unexpected("'" + std::string(sign) + "'");
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) unexpected("'" + std::string(name) + "'");
}

std::string ExpressionParser::expect_any_name() {
  if (current().kind != TokenKind::kName) unexpected("a name");
  return next().text;
}

void ExpressionParser::unexpected(const std::string& wanted) const {
  const Token& t = current();
  std::string got;
  switch (t.kind) {
    case TokenKind::kEnd:
      got = "the end of the template";
      break;
    case TokenKind::kBlockEnd:
      got = "the end of the tag";
      break;
    case TokenKind::kVariableEnd:
      got = "the end of the print statement";
      break;
    case TokenKind::kData:
    case TokenKind::kBlockBegin:
    case TokenKind::kVariableBegin:
      got = "text";
      break;
    case TokenKind::kString:
      got = "a string";
      break;
    default:
      got = "'" + t.text + "'";
  }
  error("expected " + wanted + ", got " + got);
}

Symbol ExpressionParser::intern(const std::string& name) {
  const auto [it, fresh] = symbols_.try_emplace(name, Symbol(program_.symbols.size()));
  if (fresh) program_.symbols.push_back(name);
  return it->second;
}

ExprPtr ExpressionParser::make(ExprKind kind, int line) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  return e;
}

ExprPtr ExpressionParser::done(ExprPtr e) {
  int below = 0;
  for (const ExprPtr& a : e->args) below = std::max(below, a ? a->height : 0);
  for (const auto& [name, a] : e->named) below = std::max(below, a->height);
  if (e->rest) below = std::max(below, e->rest->height);
  if (e->rest_named) below = std::max(below, e->rest_named->height);
  e->height = below + 1;
  if (e->height > kMaxHeight) error("an expression must chain at most " + std::to_string(kMaxHeight) + " operations");
  return e;
}

ExprPtr ExpressionParser::constant(Value v, int line) {
  ExprPtr e = make(ExprKind::kConstant, line);
  e->constant = std::move(v);
  return e;
}

ExprPtr ExpressionParser::name_load(const Token& token) {
  ExprPtr e = make(ExprKind::kName, token.line);
  e->name = token.text;
  e->symbol = intern(token.text);
  for (Signature* s : signatures_) {
    s->caller |= e->symbol == program_.caller;
    s->varargs |= e->symbol == program_.varargs;
    s->kwargs |= e->symbol == program_.kwargs;
  }
  return e;
}

ExprPtr ExpressionParser::binary(ExprKind kind, ExprPtr a, ExprPtr b, int line) {
  ExprPtr e = make(kind, line);
  e->args.push_back(std::move(a));
  e->args.push_back(std::move(b));
  return done(std::move(e));
}

ExprPtr ExpressionParser::expression(bool with_if) {
  const Nested nested(*this);
  if (!with_if) return or_();
  const int line = current().line;
  const size_t unknown = unknown_.size();
  ExprPtr e = or_();
  const bool choice_follows = current().is_name("if");
  while (skip_name("if")) {
    ExprPtr condition = or_();
    ExprPtr choice = make(ExprKind::kIf, line);
    choice->args.push_back(std::move(e));
    choice->args.push_back(std::move(condition));
    choice->args.push_back(skip_name("else") ? expression() : nullptr);
    e = done(std::move(choice));
  }
  if (choice_follows) unknown_.resize(unknown);
  return e;
}

ExprPtr ExpressionParser::or_() {
  ExprPtr left = and_();
  for (int line = current().line; skip_name("or"); line = current().line)
    left = binary(ExprKind::kOr, std::move(left), and_(), line);
  return left;
}

ExprPtr ExpressionParser::and_() {
  ExprPtr left = not_();
  for (int line = current().line; skip_name("and"); line = current().line)
    left = binary(ExprKind::kAnd, std::move(left), not_(), line);
  return left;
}

ExprPtr ExpressionParser::not_() {
  if (!current().is_name("not")) return compare();
  const Nested nested(*this);
  ExprPtr e = make(ExprKind::kNot, next().line);
  e->args.push_back(not_());
  return done(std::move(e));
}

ExprPtr ExpressionParser::compare() {
  static constexpr std::pair<std::string_view, Comparison> kSigns[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kUnequal}, {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">", Comparison::kGreater},  {">=", Comparison::kGreaterEqual}};
  ExprPtr first = sum();
  ExprPtr e;
  while (true) {
    const int line = current().line;
    Comparison comparison;
    const auto sign = std::find_if(std::begin(kSigns), std::end(kSigns),
                                   [&](const auto& s) { return current().is_operator(s.first); });
    if (sign != std::end(kSigns)) {
      comparison = sign->second;
      next();
    } else if (skip_name("in")) {
      comparison = Comparison::kIn;
    } else if (current().is_name("not") && look().is_name("in")) {
      next();
      next();
      comparison = Comparison::kNotIn;
    } else {
      break;
    }
    if (!e) {
      e = make(ExprKind::kCompare, line);
      e->args.push_back(std::move(first));
    }
    e->comparisons.push_back(comparison);
    e->args.push_back(sum());
  }
  return e ? done(std::move(e)) : std::move(first);
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const Token sign = next();
    left = binary(ExprKind::kArithmetic, std::move(left), concat(), sign.line);
    left->op = sign.text == "+" ? Arithmetic::kAdd : Arithmetic::kSub;
  }
  return left;
}

ExprPtr ExpressionParser::concat() {
  ExprPtr first = product();
  if (!current().is_operator("~")) return first;
  ExprPtr e = make(ExprKind::kConcat, current().line);
  e->args.push_back(std::move(first));
  while (skip_operator("~")) e->args.push_back(product());
  return done(std::move(e));
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (true) {
    const std::string& sign = current().text;
    if (current().kind != TokenKind::kOperator || (sign != "*" && sign != "/" && sign != "//" && sign != "%"))
      return left;
    const Token token = next();
    left = binary(ExprKind::kArithmetic, std::move(left), power(), token.line);
    left->op = token.text == "*"   ? Arithmetic::kMul
               : token.text == "/" ? Arithmetic::kDiv
               : token.text == "%" ? Arithmetic::kMod
                                   : Arithmetic::kFloorDiv;
  }
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  for (int line = current().line; skip_operator("**"); line = current().line) {
    left = binary(ExprKind::kArithmetic, std::move(left), unary(true), line);
    left->op = Arithmetic::kPow;
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  ExprPtr e;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Nested nested(*this);
    const Token sign = next();
    e = make(ExprKind::kUnary, sign.line);
    e->minus = sign.text == "-";
    e->args.push_back(unary(false));
    e = done(std::move(e));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filtered(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::primary() {
  const Token token = current();
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      const std::string& n = token.text;
      if (n == "true" || n == "True") return constant(Value::of(true), token.line);
      if (n == "false" || n == "False") return constant(Value::of(false), token.line);
      if (n == "none" || n == "None") return constant(Value::none(), token.line);
      return name_load(token);
    }
    case TokenKind::kString: {
      std::string joined;
      while (current().kind == TokenKind::kString) joined += next().text;
      return constant(Value::of(shared_text(std::move(joined))), token.line);
    }
    case TokenKind::kInteger:
      next();
      return constant(Value::of_int(token.integer), token.line);
    case TokenKind::kFloat:
      next();
      return constant(Value::of_float(token.number), token.line);
    default:
      break;
  }
  if (skip_operator("(")) {
    const Nested nested(*this);
    ExprPtr e = tuple(true, true);
    expect_operator(")");
    return e;
  }
  if (token.is_operator("[")) return list();
  if (token.is_operator("{")) return dict();
  unexpected("an expression");
}

bool ExpressionParser::tuple_ends() const {
  const TokenKind kind = current().kind;
  return kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || current().is_operator(")");
}

ExprPtr ExpressionParser::tuple(bool with_if, bool bracketed) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_operator(",");
    if (tuple_ends()) break;
    items.push_back(expression(with_if));
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !bracketed) unexpected("an expression");
  ExprPtr e = make(ExprKind::kTuple, line);
  e->args = std::move(items);
  return done(std::move(e));
}

ExprPtr ExpressionParser::list() {
  ExprPtr e = make(ExprKind::kList, next().line);
  while (!current().is_operator("]")) {
    if (!e->args.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    e->args.push_back(expression());
  }
  expect_operator("]");
  return done(std::move(e));
}

ExprPtr ExpressionParser::dict() {
  ExprPtr e = make(ExprKind::kDict, next().line);
  while (!current().is_operator("}")) {
    if (!e->args.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    e->args.push_back(expression());
    expect_operator(":");
    e->args.push_back(expression());
  }
  expect_operator("}");
  return done(std::move(e));
}

}  // namespace mettle::jinja

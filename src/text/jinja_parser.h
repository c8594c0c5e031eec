// Recursive descent over the tokens, rule by rule as Jinja2's parser: expressions here, statements on top.
#pragma once
#include <functional>
#include <initializer_list>
#include <unordered_map>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace mettle::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::string_view source, size_t max_depth);

 protected:
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool skip_operator(std::string_view sign);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view sign);
  void expect_name(std::string_view name);
  std::string expect_any_name();
  [[noreturn]] void unexpected(const std::string& wanted) const;
  [[noreturn]] void error(const std::string& what) const { syntax_error(current().line, what); }

  Symbol intern(const std::string& name);

  ExprPtr expression(bool with_if = true);
  // What may stand without brackets: one expression, or several with commas, which are a tuple.
  ExprPtr tuple(bool with_if, bool bracketed = false);
  ExprPtr primary();
  ExprPtr filters(ExprPtr value, bool inline_start = false);
  void call_arguments(Expr& into);
  ExprPtr call(ExprPtr callee);

  // Counts the nesting of what is being parsed: the source is untrusted and the parser recursive.
  struct Nested {
    ExpressionParser& parser;
    explicit Nested(ExpressionParser& p);
    ~Nested() { parser.depth_--; }
  };

  Program program_;
  std::vector<Signature*> signatures_;  // of the macros around
  // Filters and tests that do not exist. Under a condition they are an error only when they are reached.
  std::vector<std::pair<int, std::string>> unknown_;
  bool conditional_ = false;

 private:
  ExprPtr or_(), and_(), not_(), compare(), sum(), concat(), product(), power(), unary(bool with_filters);
  ExprPtr list(), dict();
  ExprPtr postfix(ExprPtr e), filtered(ExprPtr e);
  ExprPtr filter(ExprPtr value, bool first), test(ExprPtr value), subscript(ExprPtr e), subscribed(ExprPtr object);
  ExprPtr make(ExprKind kind, int line);
  ExprPtr done(ExprPtr e);  // sets and checks the height
  ExprPtr constant(Value v, int line);
  ExprPtr name_load(const Token& token);
  ExprPtr binary(ExprKind kind, ExprPtr a, ExprPtr b, int line);
  bool tuple_ends() const;
  std::string dotted_name();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t depth_ = 0, max_depth_;
  std::unordered_map<std::string, Symbol> symbols_;
};

}  // namespace mettle::jinja

// Runs a parsed template: scopes, statements, calls of macros. One object renders once.
#pragma once
#include "text/jinja_ast.h"
#include "text/jinja_runtime.h"

namespace mettle::jinja {

// Variables of one scope. Lookup goes outwards; assignment stays inside.
struct Scope : Object {
  Scope* outer = nullptr;
  std::vector<std::pair<Symbol, Value>> variables;

  Value* find(Symbol symbol);
  void set(Symbol symbol, Value value);
};

class Interpreter {
 public:
  Interpreter(const Program& program, Runtime& rt) : program_(program), rt_(rt) {}

  std::string run(const std::vector<std::pair<Symbol, Value>>& variables);

 private:
  friend struct Macro;
  friend struct Loop;
  enum class Flow { kNormal, kBreak, kContinue };

  Flow execute(const Body& body, Scope& scope, std::string& out);
  Flow execute(const Stmt& s, Scope& scope, std::string& out);
  Flow run_if(const Stmt& s, Scope& scope, std::string& out);
  Flow run_for(const Stmt& s, const Value& over, Scope& scope, std::string& out, size_t depth);
  Flow run_set_block(const Stmt& s, Scope& scope);
  Flow run_filter_block(const Stmt& s, Scope& scope, std::string& out);
  Flow run_scope(const Stmt& s, Scope& scope, std::string& out);
  void run_call_block(const Stmt& s, Scope& scope, std::string& out);
  void print(const Stmt& s, Scope& scope, std::string& out);
  void append(std::string& out, std::string_view text);
  void assign(const Target& target, const Value& value, Scope& scope);
  Value macro(const Signature& signature, const Body& body, Scope& scope);

  Value evaluate(const Expr& e, Scope& scope);
  Value evaluate_node(const Expr& e, Scope& scope);
  Value name(const Expr& e, Scope& scope);
  Value dict(const Expr& e, Scope& scope);
  Value concat(const Expr& e, Scope& scope);
  Value compare(const Expr& e, Scope& scope);
  Value slice(const Expr& e, Scope& scope);
  Value call(const Expr& e, Scope& scope, const Value* caller = nullptr);
  Value filter(const Expr& e, Scope& scope);
  Value test(const Expr& e, Scope& scope);
  Call arguments(const Expr& e, Scope& scope, size_t first);

  const Program& program_;
  Runtime& rt_;
  const Value* filter_input_ = nullptr;  // the text of the filter block being closed
};

}  // namespace mettle::jinja

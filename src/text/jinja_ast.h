// A parsed template. Nothing in it changes while it renders, so threads may share it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_operators.h"

namespace mettle::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;
using Symbol = int;  // an index of Program::symbols

enum class ExprKind {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,  // args: key, value, key, value ...
  kArithmetic,
  kUnary,   // + and -
  kConcat,  // ~
  kCompare,
  kNot,
  kAnd,
  kOr,
  kIf,         // args: then, condition, else or nullptr
  kAttribute,  // a.name
  kItem,       // a[args[1]]
  kSlice,      // a[args[1] : args[2] : args[3]], nullptr where left out
  kCall,
  kFilter,  // args[0] is nullptr inside a filter block: the block's text
  kTest,
};

enum class Comparison { kEqual, kUnequal, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int height = 1;
  Value constant;
  Symbol symbol = -1;
  std::string name;           // of the attribute, filter, test or variable
  std::vector<ExprPtr> args;  // operands; of a call the callee, then the arguments
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr rest, rest_named;  // *rest, **rest_named
  Arithmetic op = Arithmetic::kAdd;
  bool minus = false;
  std::vector<Comparison> comparisons;
  FilterFunction filter = nullptr;
  TestFunction test = nullptr;
};

struct Target {
  enum class Kind { kName, kAttribute, kTuple } kind = Kind::kName;
  Symbol symbol = -1;
  std::string attribute;  // of the namespace `symbol`
  std::vector<Target> items;
};

struct Parameter {
  Symbol symbol = -1;
  std::string name;
  ExprPtr default_value;
};

struct Signature {
  std::string name;
  std::vector<Parameter> parameters;
  bool varargs = false, kwargs = false, caller = false;  // the body speaks of them
  bool captures = false;                                 // it has macros of its own, which may keep its scope
};

enum class StmtKind {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kScope,
  kWith,
  kBreak,
  kContinue
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  std::vector<ExprPtr> exprs;   // kPrint; kIf: conditions; kSet, kFor, kCallBlock, kFilterBlock: one; kWith: values
  std::vector<Body> bodies;     // kIf: one more than conditions when there is an else; kFor: body and else
  std::vector<Target> targets;  // kSet, kSetBlock, kFor: one; kWith: one each
  ExprPtr condition;            // kFor: its filter; kSetBlock: a filter on the text
  Symbol symbol = -1;           // kMacro
  Signature signature;          // kMacro, kCallBlock
  bool recursive = false;       // kFor
  bool captures = false;        // a macro inside may keep the scope alive
};

struct Program {
  Body body;
  std::vector<std::string> symbols;
  Symbol loop = -1, caller = -1, varargs = -1, kwargs = -1;
};

Program parse_template(std::string_view source, size_t max_depth);

}  // namespace mettle::jinja

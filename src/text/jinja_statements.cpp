#include <algorithm>

#include "text/jinja_parser.h"
#include "text/jinja_print.h"

namespace mettle::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

// Each is compared with all before it.
constexpr size_t kMaxParameters = 1000;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Program run() {
    program_.body = body({});
    if (!unknown_.empty()) syntax_error(unknown_[0].first, unknown_[0].second);
    return std::move(program_);
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  static StmtPtr make(StmtKind kind, int line) {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = line;
    return s;
  }

  void end_block() {
    if (current().kind != TokenKind::kBlockEnd) unexpected("the end of the tag");
    next();
  }

  // Up to a tag that is one of `ends`, which is the current token afterwards; without ends to the end of the template.
  Body body(Ends ends) {
    const Nested nested(*this);
    Body out;
    while (true) {
      const Token token = current();
      switch (token.kind) {
        case TokenKind::kEnd:
          if (ends.size() > 0) error("the template ends, but '" + std::string(*(ends.end() - 1)) + "' is missing");
          return out;
        case TokenKind::kData: {
          next();
          StmtPtr s = make(StmtKind::kText, token.line);
          s->text = token.text;
          out.push_back(std::move(s));
          break;
        }
        case TokenKind::kVariableBegin: {
          next();
          StmtPtr s = make(StmtKind::kPrint, token.line);
          s->exprs.push_back(tuple(true));
          if (current().kind != TokenKind::kVariableEnd) unexpected("the end of the print statement");
          next();
          out.push_back(std::move(s));
          break;
        }
        default:  // kBlockBegin: everything else stands inside a tag
          next();
          for (const std::string_view end : ends) {
            if (current().is_name(end)) return out;
          }
          out.push_back(statement());
          end_block();
      }
    }
  }

  // A body behind its opening tag, up to and without the closing one.
  Body inner(Ends ends) {
    skip_operator(":");
    end_block();
    return body(ends);
  }
  Body inner_closed(std::string_view end) {
    Body out = inner({end});
    next();
    return out;
  }

  StmtPtr statement() {
    if (current().kind != TokenKind::kName) unexpected("the name of a tag");
    const Token tag = next();
    const std::string& name = tag.text;
    if (name == "if") return if_(tag.line);
    if (name == "for") return for_(tag.line);
    if (name == "set") return set(tag.line);
    if (name == "macro") return macro(tag.line);
    if (name == "call") return call_block(tag.line);
    if (name == "filter") return filter_block(tag.line);
    if (name == "with") return with(tag.line);
    if (name == "print") return print(tag.line);
    if (name == "generation") return generation(tag.line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) syntax_error(tag.line, "'" + name + "' stands outside a loop");
      return make(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, tag.line);
    }
    if (name.starts_with("end") || name == "else" || name == "elif")
      syntax_error(tag.line, "'" + name + "' ends nothing here");
    syntax_error(tag.line, "unknown or unsupported tag '" + name + "'");
  }

  // What Jinja2 compiles as a scope of its own ends the condition around it.
  struct Unconditional {
    Parser& parser;
    bool outer;
    explicit Unconditional(Parser& p, bool conditional = false) : parser(p), outer(p.conditional_) {
      p.conditional_ = conditional;
    }
    ~Unconditional() { parser.conditional_ = outer; }
  };

  StmtPtr if_(int line) {
    const Unconditional condition(*this, true);
    StmtPtr s = make(StmtKind::kIf, line);
    while (true) {
      s->exprs.push_back(tuple(false));
      s->bodies.push_back(inner({"elif", "else", "endif"}));
      const Token end = next();
      if (end.text == "elif") continue;
      if (end.text == "else") s->bodies.push_back(inner_closed("endif"));
      return s;
    }
  }

  StmtPtr for_(int line) {
    StmtPtr s = make(StmtKind::kFor, line);
    fors_++;
    s->targets.push_back(target(false));
    expect_name("in");
    s->exprs.push_back(tuple(false));
    const Unconditional scope(*this);
    if (skip_name("if")) s->condition = expression();
    s->recursive = skip_name("recursive");
    const size_t before = captures_;
    loops_++;
    s->bodies.push_back(inner({"endfor", "else"}));
    loops_--;
    s->captures = captures_ != before;
    if (next().text == "else") s->bodies.push_back(inner_closed("endfor"));
    fors_--;
    return s;
  }

  StmtPtr set(int line) {
    StmtPtr s = make(StmtKind::kSet, line);
    s->targets.push_back(target(true));
    if (skip_operator("=")) {
      s->exprs.push_back(tuple(true));
      return s;
    }
    s->kind = StmtKind::kSetBlock;
    const Unconditional scope(*this);
    s->condition = filters(nullptr);
    const size_t before = captures_;
    s->bodies.push_back(inner_closed("endset"));
    s->captures = captures_ != before;
    return s;
  }

  void signature(Signature& into) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!into.parameters.empty()) expect_operator(",");
      if (into.parameters.size() >= kMaxParameters)
        error("a macro must have at most " + std::to_string(kMaxParameters) + " parameters");
      Parameter p;
      p.name = expect_any_name();
      p.symbol = intern(p.name);
      for (const Parameter& other : into.parameters) {
        if (other.symbol == p.symbol) error("two parameters have the name '" + p.name + "'");
      }
      if (skip_operator("="))
        p.default_value = expression();
      else if (!into.parameters.empty() && into.parameters.back().default_value)
        error("a parameter without a default follows one with a default");
      into.parameters.push_back(std::move(p));
    }
    expect_operator(")");
  }

  Body macro_body(Signature& of, std::string_view end) {
    const Unconditional scope(*this);
    const size_t before = ++captures_;
    signatures_.push_back(&of);
    const size_t loops = std::exchange(loops_, 0);
    Body out = inner_closed(end);
    loops_ = loops;
    signatures_.pop_back();
    of.captures = captures_ != before;
    return out;
  }

  StmtPtr macro(int line) {
    StmtPtr s = make(StmtKind::kMacro, line);
    s->signature.name = expect_any_name();
    s->symbol = intern(s->signature.name);
    signature(s->signature);
    s->bodies.push_back(macro_body(s->signature, "endmacro"));
    return s;
  }

  StmtPtr call_block(int line) {
    StmtPtr s = make(StmtKind::kCallBlock, line);
    s->signature.name = "caller";
    if (current().is_operator("(")) signature(s->signature);
    s->exprs.push_back(expression());
    if (s->exprs[0]->kind != ExprKind::kCall) syntax_error(line, "a call block needs a call");
    s->bodies.push_back(macro_body(s->signature, "endcall"));
    return s;
  }

  StmtPtr generation(int line) {
    StmtPtr s = make(StmtKind::kScope, line);
    const Unconditional scope(*this);
    const size_t before = captures_;
    const size_t loops = std::exchange(loops_, 0);
    s->bodies.push_back(inner_closed("endgeneration"));
    loops_ = loops;
    s->captures = captures_ != before;
    return s;
  }

  StmtPtr filter_block(int line) {
    StmtPtr s = make(StmtKind::kFilterBlock, line);
    const Unconditional scope(*this);
    s->exprs.push_back(filters(nullptr, true));
    const size_t before = captures_;
    s->bodies.push_back(inner_closed("endfilter"));
    s->captures = captures_ != before;
    return s;
  }

  StmtPtr with(int line) {
    StmtPtr s = make(StmtKind::kWith, line);
    const Unconditional scope(*this);
    while (current().kind != TokenKind::kBlockEnd && !current().is_operator(":")) {
      if (!s->targets.empty()) expect_operator(",");
      s->targets.push_back(target(false));
      expect_operator("=");
      s->exprs.push_back(expression());
    }
    const size_t before = captures_;
    s->bodies.push_back(inner_closed("endwith"));
    s->captures = captures_ != before;
    return s;
  }

  StmtPtr print(int line) {
    StmtPtr s = make(StmtKind::kPrint, line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!s->exprs.empty()) expect_operator(",");
      s->exprs.push_back(expression());
    }
    return s;
  }

  // Names, attributes of a namespace where allowed, and tuples of them with or without brackets.
  Target target(bool with_namespace) {
    Target first = one_target(with_namespace);
    if (!current().is_operator(",")) return first;
    Target all;
    all.kind = Target::Kind::kTuple;
    all.items.push_back(std::move(first));
    while (skip_operator(",")) {
      const bool ends = current().kind == TokenKind::kBlockEnd || current().is_operator(")");
      if (ends) break;
      all.items.push_back(one_target(with_namespace));
    }
    return all;
  }

  Target one_target(bool with_namespace) {
    const Nested nested(*this);
    if (skip_operator("(")) {
      Target t = target(false);
      expect_operator(")");
      return t;
    }
    Target t;
    const std::string name = expect_any_name();
    constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants))
      error("'" + name + "' cannot be assigned to");
    t.symbol = intern(name);
    if (t.symbol == program_.loop && fors_ > 0) error("the loop variable cannot be assigned to inside a loop");
    if (with_namespace && skip_operator(".")) {
      t.kind = Target::Kind::kAttribute;
      t.attribute = expect_any_name();
    }
    return t;
  }

  size_t loops_ = 0;     // around, in the same macro
  size_t fors_ = 0;      // around, across macros
  size_t captures_ = 0;  // macros and call blocks so far
};

}  // namespace

Program parse_template(std::string_view source, size_t max_depth) { return Parser(source, max_depth).run(); }

}  // namespace mettle::jinja

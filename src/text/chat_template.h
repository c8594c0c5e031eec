// A chat template of a checkpoint (Jinja), rendered as transformers renders it: immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, raise_exception, strftime_now, tojson without HTML escapes, {% generation %}.
// Templates are untrusted input: steps, depth and output are limited.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace mettle {

struct TemplateLimits {
  size_t steps = 5'000'000;           // statements and expressions evaluated, and long data walked over
  size_t depth = 200;                 // nested calls and expressions
  size_t output = size_t{8} << 20;    // bytes
  size_t memory = size_t{256} << 20;  // bytes of strings and containers alive while it renders
};

class ChatTemplate {
 public:
  // Fails with kBadModel (line, what) when the template does not parse.
  explicit ChatTemplate(std::string_view source, TemplateLimits limits = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // variables: {"messages": [...], "tools": [...] or absent, "add_generation_prompt": true, "enable_thinking": ...}.
  // Key order is kept. Fails with kInvalidRequest: raise_exception's text, an undefined operation, a limit.
  std::string render(const nlohmann::ordered_json& variables) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mettle

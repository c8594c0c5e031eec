#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle {

using jinja::Runtime;
using jinja::Value;

struct ChatTemplate::Impl {
  jinja::Program program;
  TemplateLimits limits;
};

namespace {

Value convert_text(Runtime& rt, const std::string& text) {
  if (!jinja::is_utf8(text)) rt.error("the variables must be UTF-8, got a string that is not");
  return rt.text(text);
}

Value convert(Runtime& rt, const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  const auto deeper = rt.enter_value();
  rt.step();
  switch (json.type()) {
    case Type::boolean:
      return Value::of(json.get<bool>());
    case Type::number_integer:
      return Value::of_int(json.get<int64_t>());
    case Type::number_unsigned:
      return Value::of_int(json.get<uint64_t>());
    case Type::number_float:
      return Value::of_float(json.get<double>());
    case Type::string:
      return convert_text(rt, json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(convert(rt, item));
      return rt.list(std::move(items));
    }
    case Type::object: {
      jinja::Dict* dict = nullptr;
      const Value v = rt.dict(&dict);
      for (const auto& [key, value] : json.items()) dict_set(rt, *dict, convert_text(rt, key), convert(rt, value));
      return v;
    }
    default:
      return Value::none();
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, TemplateLimits limits) {
  if (!jinja::is_utf8(source)) fail(Code::kBadModel, "chat template: must be UTF-8, got bytes that are not");
  impl_ = std::make_unique<Impl>(Impl{jinja::parse_template(source, limits.depth), limits});
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  const jinja::Program& program = impl_->program;
  Runtime rt(impl_->limits);
  try {
    std::vector<std::pair<jinja::Symbol, Value>> converted;
    for (size_t i = 0; i < program.symbols.size(); i++) {
      const auto it = variables.find(program.symbols[i]);
      if (it != variables.end()) converted.emplace_back(jinja::Symbol(i), convert(rt, *it));
    }
    return jinja::Interpreter(program, rt).run(converted);
  } catch (const jinja::RenderError& e) {
    fail(Code::kInvalidRequest, e.message);
  }
}

}  // namespace mettle

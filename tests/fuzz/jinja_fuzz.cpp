// A chat template, and after a zero byte JSON variables for it; without them a small conversation. Whatever comes, it
// renders to UTF-8, twice the same, or fails with an Error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/jinja_unicode.h"

namespace {

using Json = nlohmann::ordered_json;

// Small limits: time and memory are what a hostile template is after.
constexpr mettle::TemplateLimits kLimits = {.steps = 100'000, .depth = 200, .output = 1 << 20, .memory = 16 << 20};

const Json& conversation() {
  static const Json json = Json::parse(R"({"messages": [{"role": "system", "content": " Be <short>. "},
    {"role": "user", "content": "Grüße 🙂"}, {"role": "assistant", "content": null, "tool_calls": [{"function":
    {"name": "f", "arguments": {"a": 1, "b": [1.5, true, null, 18446744073709551615]}}}]}, {"role": "tool", "content":
    [{"type": "text", "text": "x"}]}], "tools": [{"name": "f"}], "add_generation_prompt": true})");
  return json;
}

void require(bool condition) {
  if (!condition) std::abort();
}

std::string render(const mettle::ChatTemplate& chat, const Json& variables) {
  try {
    return chat.render(variables);
  } catch (const mettle::Error& e) {
    require(e.code == mettle::Code::kInvalidRequest && mettle::jinja::is_utf8(e.message));
    return "error: " + e.message;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  Json given;
  if (zero < size) given = Json::parse(input.substr(zero + 1), nullptr, false);
  try {
    const mettle::ChatTemplate chat(input.substr(0, zero), kLimits);
    const Json& variables = given.is_object() ? given : conversation();
    const std::string text = render(chat, variables);
    require(mettle::jinja::is_utf8(text));
    if (input.find("strftime_now") == std::string_view::npos) require(render(chat, variables) == text);
  } catch (const mettle::Error& e) {
    require(e.code == mettle::Code::kBadModel && e.message.starts_with("chat template") &&
            mettle::jinja::is_utf8(e.message));
  }
  return 0;
}

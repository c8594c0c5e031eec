#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::string& path) {
  std::ifstream in(std::string(METTLE_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The text, or "CODE: message" of the error.
std::string render(std::string_view source, const Json& variables = Json::object(), TemplateLimits limits = {}) {
  try {
    return ChatTemplate(source, limits).render(variables);
  } catch (const Error& e) {
    return (e.code == Code::kBadModel         ? "bad model: "
            : e.code == Code::kInvalidRequest ? "invalid request: "
                                              : "?: ") +
           e.message;
  }
}

TEST(ChatTemplateGolden, EveryLineOfTheEmbeddedModel) {
  const ChatTemplate chat(read_file("models/mettle-tiny/chat_template.jinja"));
  std::istringstream lines(read_file("models/golden/template.jsonl"));
  std::string line;
  int n = 0, errors = 0;
  while (std::getline(lines, line)) {
    n++;
    const Json golden = Json::parse(line);
    Json variables = golden["options"];
    variables["messages"] = golden["messages"];
    if (golden.contains("tools")) variables["tools"] = golden["tools"];
    if (golden.contains("error")) {
      errors++;
      try {
        ADD_FAILURE() << "line " << n << " rendered: " << chat.render(variables);
      } catch (const Error& e) {
        EXPECT_EQ(e.code, Code::kInvalidRequest);
        EXPECT_EQ(e.message, golden["error"].get<std::string>()) << "line " << n;
      }
    } else {
      EXPECT_EQ(chat.render(variables), golden["text"].get<std::string>()) << "line " << n;
    }
  }
  EXPECT_EQ(n, 60);
  EXPECT_EQ(errors, 5);
}

// tests/data/jinja_cases.json: what Python's Jinja2 makes of each (tools/oracle/jinja_cases.py).
TEST(ChatTemplateCases, AsPythonRendersThem) {
  const Json cases = Json::parse(read_file("tests/data/jinja_cases.json"));
  EXPECT_GT(cases.size(), 1000u);
  for (const Json& c : cases) {
    const std::string source = c["template"];
    const std::string got = render(source, c.value("variables", Json::object()));
    if (c.contains("text")) {
      EXPECT_EQ(got, c["text"].get<std::string>()) << source;
      continue;
    }
    const std::string type = c["error"];
    const bool syntax = type == "TemplateSyntaxError" || type == "TemplateAssertionError" || type == "SyntaxError";
    EXPECT_TRUE(got.starts_with(syntax ? "bad model: chat template, line " : "invalid request: "))
        << source << "\n  Python: " << type << ": " << c["message"] << "\n  here:   " << got;
    if (type == "TemplateError") {
      EXPECT_EQ(got, "invalid request: " + c["message"].get<std::string>()) << source;
    }
  }
}

}  // namespace
}  // namespace mettle

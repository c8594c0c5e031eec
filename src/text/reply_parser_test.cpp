#include "text/reply_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

const char* const kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
  "s": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
  "o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["string", "null"]}, "z": {"type": "null"},
  "any": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "untyped": {"description": "?"}}}}}])";

// Everything that the deltas add up to, as one JSON value.
struct Whole {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;

  void add(const ReplyDelta& d) {
    reasoning += d.reasoning;
    content += d.content;
    for (const ToolCall& c : d.tool_calls) calls.emplace_back(c.name, c.arguments);
  }
  bool operator==(const Whole&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Whole& w) {
  out << "reasoning " << Json(w.reasoning) << " content " << Json(w.content);
  for (const auto& [name, arguments] : w.calls) out << " call " << name << " " << arguments;
  return out;
}

ReplyParserOptions options(bool reasoning, bool tools) {
  return {.starts_in_reasoning = reasoning, .parse_tool_calls = tools, .tools_json = tools ? kTools : ""};
}

Whole parse(const ReplyParserOptions& o, const std::vector<std::string_view>& chunks) {
  ReplyParser parser(o);
  Whole whole;
  for (const std::string_view chunk : chunks) whole.add(parser.push(chunk));
  whole.add(parser.finish());
  return whole;
}

// One push; also checks that single bytes and every cut into two give the same.
Whole parse(const ReplyParserOptions& o, std::string_view text) {
  const Whole whole = parse(o, std::vector{text});
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); i++) bytes.push_back(text.substr(i, 1));
  EXPECT_EQ(parse(o, bytes), whole) << text;
  for (size_t i = 0; i <= text.size(); i++)
    EXPECT_EQ(parse(o, std::vector{text.substr(0, i), text.substr(i)}), whole) << text << " cut at " << i;
  return whole;
}

Whole reasoned(std::string_view text) { return parse(options(true, false), text); }
Whole called(std::string_view text) { return parse(options(false, true), text); }

std::string argument(std::string_view key, std::string_view value) {
  const Whole w = called("<tool_call>\n<function=f>\n<parameter=" + std::string(key) + ">\n" + std::string(value) +
                         "\n</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(w.content, "");
  if (w.calls.size() != 1) return "no call";
  return Json::parse(w.calls[0].second).at(std::string(key)).dump();
}

TEST(ReplyParser, ReasoningEndsAtTheFirstTag) {
  EXPECT_EQ(reasoned("think\n</think>\n\nanswer"), (Whole{"think\n", "answer", {}}));
  EXPECT_EQ(reasoned("</think>answer"), (Whole{"", "answer", {}}));
  EXPECT_EQ(reasoned("a</think>\n\n\n b</think>c"), (Whole{"a", "\n b</think>c", {}}));
  EXPECT_EQ(reasoned("no end </thin"), (Whole{"no end </thin", "", {}}));
  EXPECT_EQ(reasoned(""), (Whole{}));
  EXPECT_EQ(reasoned("a</think>"), (Whole{"a", "", {}}));
  EXPECT_EQ(reasoned("<tool_call></think>x"), (Whole{"<tool_call>", "x", {}}));
}

TEST(ReplyParser, ContentStaysAsItIs) {
  const auto plain = [](std::string_view text) { return parse(options(false, false), text); };
  EXPECT_EQ(plain("  a\n\n<tool_call>{}</tool_call> "), (Whole{"", "  a\n\n<tool_call>{}</tool_call> ", {}}));
  EXPECT_EQ(plain(" \n"), (Whole{"", " \n", {}}));
  EXPECT_EQ(plain("<thin"), (Whole{"", "<thin", {}}));
  EXPECT_EQ(plain("a<think>b</think>"), (Whole{"", "a<think>b</think>", {}}));
}

TEST(ReplyParser, AReplyMayOpenItsReasoningItself) {
  EXPECT_EQ(parse(options(false, false), "<think>\na\n</think>\n\nb"), (Whole{"a\n", "b", {}}));
  EXPECT_EQ(parse(options(false, false), "\n<think>a"), (Whole{"a", "", {}}));
}

TEST(ReplyParser, XmlCalls) {
  EXPECT_EQ(called("Let me see.\n\n<tool_call>\n<function=f>\n<parameter=s>\na\nb\n</parameter>\n<parameter=n>\n1.50\n"
                   "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>\n"),
            (Whole{"", "Let me see.", {{"f", "{\"s\": \"a\\nb\", \"n\": 1.50}"}, {"g", "{}"}}}));
  EXPECT_EQ(called("<tool_call><function=f></function></tool_call> then text "),
            (Whole{"", "then text ", {{"f", "{}"}}}));
  EXPECT_EQ(parse(options(true, true), "hm</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>"),
            (Whole{"hm", "", {{"f", "{}"}}}));
}

TEST(ReplyParser, ValuesFollowTheSchema) {
  EXPECT_EQ(argument("s", "12"), "\"12\"");
  EXPECT_EQ(argument("s", "\nx\n"), "\"\\nx\\n\"");  // exactly one newline on each side is the tag's
  EXPECT_EQ(argument("s", "say \"hi\" é"), "\"say \\\"hi\\\" é\"");
  EXPECT_EQ(argument("n", "12.5"), "12.5");
  EXPECT_EQ(argument("i", "12"), "12");
  EXPECT_EQ(argument("i", "twelve"), "\"twelve\"");
  EXPECT_EQ(argument("b", "true"), "true");
  EXPECT_EQ(argument("b", "True"), "true");
  EXPECT_EQ(argument("o", "{\"a\": [1, 2]}"), "{\"a\":[1,2]}");
  EXPECT_EQ(argument("o", "{broken"), "\"{broken\"");
  EXPECT_EQ(argument("a", "[1, \"x\"]"), "[1,\"x\"]");
  EXPECT_EQ(argument("u", "null"), "null");
  EXPECT_EQ(argument("u", "12"), "\"12\"");
  EXPECT_EQ(argument("z", "None"), "null");
  EXPECT_EQ(argument("any", "7"), "7");
  EXPECT_EQ(argument("untyped", "7"), "\"7\"");
  EXPECT_EQ(argument("unknown", "7"), "\"7\"");
  EXPECT_EQ(argument("s", "</tool_call> and </parameter> and <tool_call>"),
            "\"</tool_call> and </parameter> and <tool_call>\"");
  EXPECT_EQ(argument("s", ""), "\"\"");
}

TEST(ReplyParser, RepeatedParametersTakeTheLastValue) {
  EXPECT_EQ(
      called("<tool_call><function=f><parameter=s>a</parameter><parameter=s>b</parameter></function></tool_call>"),
      (Whole{"", "", {{"f", "{\"s\": \"b\"}"}}}));
}

TEST(ReplyParser, JsonCalls) {
  EXPECT_EQ(
      called("a <tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\\\"\", \"n\": 1}}\n</tool_call>"),
      (Whole{"", "a", {{"f", "{\"s\":\"</tool_call>\\\"\",\"n\":1}"}}}));
  EXPECT_EQ(called("<tool_call>{\"name\": \"f\"}</tool_call>"), (Whole{"", "", {{"f", "{}"}}}));
  EXPECT_EQ(called("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"),
            (Whole{"", "", {{"f", "{\"a\": 1}"}}}));
}

TEST(ReplyParser, MalformedCallsAreContent) {
  const auto is_content = [](const std::string& text) { EXPECT_EQ(called(text), (Whole{"", text, {}})); };
  is_content("a <tool_call> b </tool_call> c ");
  is_content("<tool_call>");
  is_content("<tool_call>\n<function=f>\n<parameter=s>\nx");
  is_content("<tool_call>\n<function=f>\n</function>");
  is_content("<tool_call>\n<function=>\n</function>\n</tool_call>");
  is_content("<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call> y");
  is_content("<tool_call>{\"name\": 1}</tool_call>");
  is_content("<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>");
  is_content("<tool_call>{\"name\": \"f\"</tool_call>");
  is_content("<tool_call></tool_call>");
  is_content("x <tool_cal");
  is_content("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(300, '[') + std::string(300, ']') +
             "}}</tool_call>");
}

TEST(ReplyParser, ACallInsideAMalformedOneCounts) {
  EXPECT_EQ(called("write <tool_call> first: <tool_call>{\"name\": \"f\"}</tool_call>"),
            (Whole{"", "write <tool_call> first:", {{"f", "{}"}}}));
}

TEST(ReplyParser, DecidedTextIsNotHeldBack) {
  ReplyParser parser(options(true, true));
  EXPECT_EQ(parser.push("abc").reasoning, "abc");
  EXPECT_EQ(parser.push("d</th").reasoning, "d");
  EXPECT_EQ(parser.push("ink>\n").reasoning, "");
  EXPECT_EQ(parser.push("\nHello").content, "Hello");
  EXPECT_EQ(parser.push(" <tool_").content, "");
  EXPECT_EQ(parser.push("box> x").content, " <tool_box> x");
  EXPECT_EQ(parser.push("<tool_call>oops").content, "<tool_call>oops");
}

// Any text, cut anywhere, gives what one push gives.
TEST(ReplyParser, RandomTextsInRandomChunks) {
  const std::vector<std::string> pieces = {"<think>",
                                           "</think>",
                                           "<tool_call>",
                                           "</tool_call>",
                                           "<function=f>",
                                           "</function>",
                                           "<parameter=s>",
                                           "<parameter=n>",
                                           "</parameter>",
                                           "\n",
                                           "\n\n",
                                           " ",
                                           "x",
                                           "12",
                                           "{\"name\": \"f\"",
                                           ", \"arguments\": {\"a\": \"",
                                           "\"",
                                           "}",
                                           "}}",
                                           "\\",
                                           "é",
                                           "<",
                                           "/"};
  std::mt19937 rng(7);
  const auto below = [&](size_t n) { return size_t(rng() % n); };
  size_t calls = 0;
  for (int round = 0; round < 20000; round++) {
    std::string text;
    for (size_t n = below(24); n > 0; n--) text += pieces[below(pieces.size())];
    if (below(3) == 0) text.insert(below(text.size() + 1), "<tool_call><function=f><parameter=s>");
    if (below(3) == 0) text += "</parameter></function></tool_call>";
    const ReplyParserOptions o = options(below(2), below(4) != 0);
    const Whole whole = parse(o, std::vector{std::string_view(text)});
    calls += whole.calls.size();
    std::vector<std::string_view> chunks;
    for (size_t at = 0; at < text.size();) {
      const size_t n = std::min(1 + below(9), text.size() - at);
      chunks.push_back(std::string_view(text).substr(at, n));
      at += n;
    }
    ASSERT_EQ(parse(o, chunks), whole) << text;
    for (const auto& [name, arguments] : whole.calls) ASSERT_TRUE(Json::parse(arguments).is_object()) << arguments;
  }
  EXPECT_GT(calls, 500u);
}

TEST(ReplyParser, PromptOpensReasoning) {
  EXPECT_TRUE(prompt_opens_reasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(prompt_opens_reasoning("<|assistant|><think>"));
  EXPECT_TRUE(prompt_opens_reasoning("<think>a</think>b<|im_start|>assistant\n<think>\nprefilled"));
  EXPECT_FALSE(prompt_opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(prompt_opens_reasoning("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_FALSE(prompt_opens_reasoning("<|assistant|></think>"));
  EXPECT_FALSE(prompt_opens_reasoning(""));
}

}  // namespace
}  // namespace mettle

#include "server/openai_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/json_limits.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

RequestContext context() {
  RequestContext c{.vocab_size = 1000, .context_length = 100};
  c.defaults.temperature = 0.6;
  c.defaults.top_k = 20;
  return c;
}

Json chat_body() { return {{"model", "m"}, {"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}}; }
Json text_body() { return {{"model", "m"}, {"prompt", "Hi"}}; }

// The error for a body whose field is replaced; an empty param when it was taken.
Error chat_error(const std::string& field, const Json& value) {
  Json body = chat_body();
  body[field] = value;
  try {
    parse_chat_request(body.dump(), context());
  } catch (const Error& e) {
    return e;
  }
  return {Code::kInternal, "accepted"};
}
Error text_error(const std::string& field, const Json& value) {
  Json body = text_body();
  body[field] = value;
  try {
    parse_text_request(body.dump(), context());
  } catch (const Error& e) {
    return e;
  }
  return {Code::kInternal, "accepted"};
}
std::string json_error(const std::string& text) {
  try {
    parse_json(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalidRequest);
    return e.message;
  }
  return "accepted";
}

TEST(JsonLimits, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "nul", "{\"a\":1,}", "[1,]", "{'a':1}", "{\"a\":NaN}", "[1e999]", "\"\xC0\xAF\"",
                           "\"\xED\xA0\x80\"", "\"\\ud83d\"", "\"\\ude00\"", "\"a\x01\"", "[1] x", "\"\xff\""})
    EXPECT_NE(json_error(text).find("body: must be JSON"), std::string::npos) << text;
  EXPECT_NE(json_error(std::string("\"a\0\"", 4)).find("must be JSON"), std::string::npos);
  EXPECT_NE(json_error("{\"a\":1,\"b\":{\"a\":1,\"a\":2}}").find("key \"a\" is given twice"), std::string::npos);
  EXPECT_EQ(json_error("{\"a\":{\"a\":1},\"b\":[{\"a\":1}]}"), "accepted");
  EXPECT_EQ(json_error("\"[[[[[[ \\\" {{{{\""), "accepted");
  EXPECT_EQ(json_error("\"\\ud83d\\ude00\""), "accepted");
}

TEST(JsonLimits, BoundsDepthKeysAndValuesBeforeAnythingIsBuilt) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(json_error(nested(64)), "accepted");
  EXPECT_EQ(json_error(nested(65)), "body: at most 64 nested arrays and objects, one more at byte 64");
  EXPECT_NE(json_error(nested(10'000)).find("at most 64 nested"), std::string::npos);
  EXPECT_NE(json_error(std::string(1'000'000, '[')).find("at most 64 nested"), std::string::npos);
  std::string keys = "{";
  for (int i = 0; i < 100'000; ++i) keys += "\"" + std::to_string(i) + "\":1,";
  EXPECT_NE(json_error(keys + "\"x\":1}").find("at most 4096 keys"), std::string::npos);
  std::string values = "[0";
  for (int i = 0; i < 2'000'001; ++i) values += ",0";
  EXPECT_NE(json_error(values + "]").find("at most 2000000 values"), std::string::npos);
  EXPECT_NE(json_error(std::string((16 << 20) + 1, ' ')).find("at most 16777216 bytes"), std::string::npos);
  // Many objects of many keys: each may be as large as it is, all of them may not.
  std::string object = "{\"x\":1";
  for (int i = 1; i < 4096; ++i) object += ",\"" + std::to_string(i) + "\":1";
  object += "}";
  EXPECT_EQ(json_error("[" + object + "," + object + "]"), "accepted");
  std::string objects = "[" + object;
  for (int i = 0; i < 200; ++i) objects += "," + object;
  EXPECT_NE(json_error(objects + "]").find("at most 50000000 comparisons of keys"), std::string::npos);
}

TEST(ChatRequest, TakesDefaultsFromTheModel) {
  const ChatRequest r = parse_chat_request(chat_body().dump(), context());
  EXPECT_EQ(r.sampling.temperature, 0.6);
  EXPECT_EQ(r.sampling.top_k, 20);
  EXPECT_EQ(r.sampling.top_p, 1);
  EXPECT_FALSE(r.max_tokens_given);
  EXPECT_EQ(r.n, 1);
  EXPECT_TRUE(r.tools.is_null());
}

TEST(ChatRequest, ReadsEveryField) {
  Json body = chat_body();
  body.update(Json::parse(R"({"temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"presence_penalty":1,
    "frequency_penalty":-1,"repetition_penalty":1.1,"seed":-3,"n":2,"stream":true,
    "stream_options":{"include_usage":true},"stop":["a","b"],"stop_token_ids":[1,2],"max_tokens":7,"min_tokens":3,
    "ignore_eos":true,"skip_special_tokens":false,"logit_bias":{"5":-100,"6":2.5},"logprobs":true,"top_logprobs":4,
    "chat_template_kwargs":{"enable_thinking":false},"user":"me","surprise":1,"response_format":{"type":"text"}})"));
  const ChatRequest r = parse_chat_request(body.dump(), context());
  const SamplingParams& s = r.sampling;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 5);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.presence, 1);
  EXPECT_EQ(s.frequency, -1);
  EXPECT_EQ(s.repetition, 1.1);
  EXPECT_EQ(s.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(r.n, 2);
  EXPECT_TRUE(r.stream && r.include_usage);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(s.max_tokens, 7);
  EXPECT_EQ(s.min_tokens, 3);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_FALSE(r.skip_special_tokens);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.f}, {6, 2.5f}}));
  EXPECT_EQ(s.top_logprobs, 4);
  EXPECT_EQ(r.template_kwargs, Json({{"enable_thinking", false}}));
  EXPECT_EQ(r.ignored, std::vector<std::string>{"surprise"});
}

TEST(ChatRequest, EveryNumberHasARange) {
  const std::vector<std::pair<std::string, std::vector<Json>>> refused = {
      {"temperature", {-1, -1e-9, 2.5, 999999, 1e308, "1", "inf", "nan", true, Json::array(), Json::object()}},
      {"top_p", {-1, 1.5, "x"}},
      {"min_p", {-0.1, 2}},
      {"top_k", {-2, 1.5, "5", 3e9}},
      {"presence_penalty", {-3, 2.1}},
      {"frequency_penalty", {-3, 2.1}},
      {"repetition_penalty", {0, -1, 11}},
      {"n", {0, -1, 17, 129, 5'000'000, 1.5, "2"}},
      {"max_tokens", {0, -1, "5", 1.5, 1e300}},
      {"max_completion_tokens", {0, -5}},
      {"min_tokens", {-1, 101, "x"}},
      {"top_logprobs", {-1, 21, 1e9, "3"}},
      {"seed", {1.5, "x", true}},
      {"stream", {1, "true"}},
      {"logprobs", {1, "true"}},
      {"ignore_eos", {1}},
      {"model", {1, Json::array()}},
      {"logit_bias",
       {1,
        Json::array(),
        {{"1000", 1}},
        {{"-1", 1}},
        {{"x", 1}},
        {{"1", 101}},
        {{"1", "a"}},
        {{"", 1}},
        {{"05", 1}},
        {{"-0", 1}}}},
      {"stop_token_ids",
       {5, Json::array({-1}), Json::array({1000}), Json::array({2147483648u}), Json(std::vector<int>(65, 1))}},
      {"stop",
       {5, "", Json::array({""}), Json::array({1}), std::string(1025, 'x'), Json(std::vector<std::string>(17, "a"))}},
  };
  for (const auto& [field, values] : refused)
    for (const Json& value : values) {
      const Error e = chat_error(field, value);
      EXPECT_EQ(e.code, Code::kInvalidRequest) << field << " " << value;
      EXPECT_EQ(e.param.substr(0, field.size()), field) << field << " " << value << " " << e.message;
      EXPECT_EQ(e.message.find(field), 0u) << e.message;
    }
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, Json>>{{"temperature", 0},
                                                 {"temperature", -0.0},
                                                 {"temperature", 1e-45},
                                                 {"top_p", 0},
                                                 {"top_k", -1},
                                                 {"n", 16},
                                                 {"top_k", 9999999},
                                                 {"max_tokens", 2147483647},
                                                 {"seed", 18446744073709551615u},
                                                 {"temperature", nullptr},
                                                 {"stop", Json(std::vector<std::string>(16, "a"))},
                                                 {"max_tokens", 5.0},
                                                 {"stop", Json::array()}})
    EXPECT_EQ(chat_error(field, value).message, "accepted") << field << " " << value;
  Json body = chat_body();
  body["top_k"] = 9999999;
  EXPECT_EQ(parse_chat_request(body.dump(), context()).sampling.top_k, 0) << "above the vocabulary means all of it";
}

TEST(ChatRequest, RefusesWhatItCannotDo) {
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, Json>>{{"response_format", {{"type", "json_object"}}},
                                                 {"response_format", {{"type", "json_schema"}}},
                                                 {"tool_choice", "required"},
                                                 {"tool_choice", {{"type", "function"}}},
                                                 {"functions", Json::array()},
                                                 {"guided_json", Json::object()},
                                                 {"modalities", Json::array({"audio"})},
                                                 {"audio", Json::object()},
                                                 {"stream_options", {{"include_usage", true}}},
                                                 {"prediction", Json::object()},
                                                 {"chat_template", "{{ messages }}"},
                                                 {"allowed_token_ids", {1, 2}},
                                                 {"echo", true},
                                                 {"best_of", 2},
                                                 {"add_generation_prompt", false},
                                                 {"continue_final_message", true},
                                                 {"include_stop_str_in_output", true}}) {
    const Error e = chat_error(field, value);
    EXPECT_EQ(e.param, field) << e.message;
  }
  for (const auto& [field, value] : std::vector<std::pair<std::string, Json>>{{"echo", false},
                                                                              {"best_of", 1},
                                                                              {"add_generation_prompt", true},
                                                                              {"continue_final_message", false},
                                                                              {"chat_template", nullptr}})
    EXPECT_EQ(chat_error(field, value).message, "accepted") << field;
  EXPECT_EQ(chat_error("top_logprobs", 2).param, "top_logprobs") << "needs logprobs";
}

TEST(ChatRequest, ChecksMessages) {
  const auto messages_error = [](const Json& messages) { return chat_error("messages", messages); };
  EXPECT_EQ(messages_error(Json::array()).message, "messages: must have at least one message, got none");
  EXPECT_EQ(messages_error("x").param, "messages");
  EXPECT_EQ(messages_error(Json::array({1})).param, "messages[0]");
  EXPECT_EQ(messages_error(Json::array({{{"content", "x"}}})).param, "messages[0].role");
  const Error role = messages_error(Json::array({{{"role", "wizard"}, {"content", "x"}}}));
  EXPECT_EQ(role.message, "messages[0].role: must be one of system, developer, user, assistant, tool, got \"wizard\"");
  EXPECT_EQ(messages_error(Json::array({{{"role", "user"}}})).param, "messages[0].content");
  EXPECT_EQ(messages_error(Json::array({{{"role", "user"}, {"content", 5}}})).param, "messages[0].content");
  const Error image = messages_error(Json::parse(
      R"([{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"x"}}]}])"));
  EXPECT_EQ(image.message,
            "messages[0].content[1].type: only text parts are supported by this model, got \"image_url\"");
  EXPECT_EQ(messages_error(
                Json::parse(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])"))
                .param,
            "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(
      messages_error(Json::parse(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])"))
          .param,
      "messages[0].tool_calls[0].function.arguments");
}

TEST(ChatRequest, BringsMessagesIntoTheFormOfTemplates) {
  const Json out = normalise_messages(Json::parse(R"([{"role":"developer","content":"be brief"},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"42"}])"));
  EXPECT_EQ(out, Json::parse(R"([{"role":"system","content":"be brief"},{"role":"user","content":"ab"},
    {"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1}}}]},
    {"role":"tool","content":"42","tool_call_id":"c1"}])"));
}

TEST(ChatRequest, ChecksTools) {
  const auto tool = [](const std::string& name) {
    return Json::array({{{"type", "function"}, {"function", {{"name", name}}}}});
  };
  EXPECT_EQ(chat_error("tools", tool("good_name-1")).message, "accepted");
  EXPECT_EQ(chat_error("tools", tool("")).param, "tools[0].function.name");
  EXPECT_EQ(chat_error("tools", tool("a b")).param, "tools[0].function.name");
  EXPECT_EQ(chat_error("tools", Json::array({{{"type", "retrieval"}}})).param, "tools[0].type");
  EXPECT_EQ(chat_error("tools", 1).param, "tools");
  Json body = chat_body();
  body["tools"] = tool("f");
  EXPECT_EQ(parse_chat_request(body.dump(), context()).tools.size(), 1u);
  body["tool_choice"] = "none";
  EXPECT_TRUE(parse_chat_request(body.dump(), context()).tools.is_null());
}

TEST(TextRequest, TakesEveryFormOfPrompt) {
  const auto prompts = [](const Json& prompt) {
    Json body = text_body();
    body["prompt"] = prompt;
    return parse_text_request(body.dump(), context()).prompts;
  };
  EXPECT_EQ(std::get<std::string>(prompts("a")[0]), "a");
  EXPECT_EQ(prompts(Json::array({"a", "b"})).size(), 2u);
  EXPECT_EQ(std::get<1>(prompts(Json::array({1, 2, 3}))[0]), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(prompts(Json::array({Json::array({1}), Json::array({2, 3})})).size(), 2u);
}

TEST(TextRequest, RefusesBadPromptsAndFields) {
  for (const Json& prompt :
       std::vector<Json>{1, true, Json::object(), Json::array(), Json::array({"a", 1}), Json::array({1, -1}),
                         Json::array({1000}), Json::array({1.5}), Json::array({Json::array()}),
                         Json(std::vector<int>(101, 1)), Json(std::vector<std::string>(65, "a"))})
    EXPECT_EQ(text_error("prompt", prompt).param.substr(0, 6), "prompt") << prompt;
  EXPECT_EQ(text_error("echo", true).param, "echo");
  EXPECT_EQ(text_error("suffix", "x").param, "suffix");
  EXPECT_EQ(text_error("best_of", 3).param, "best_of");
  EXPECT_EQ(text_error("logprobs", 21).param, "logprobs");
  EXPECT_EQ(text_error("logprobs", true).param, "logprobs");
  EXPECT_EQ(text_error("best_of", 1).message, "accepted");
  Json body = text_body();
  body.erase("prompt");
  EXPECT_THROW(parse_text_request(body.dump(), context()), Error);
  EXPECT_THROW(parse_text_request("[]", context()), Error);
  EXPECT_THROW(parse_text_request("3", context()), Error);
}

}  // namespace
}  // namespace mettle

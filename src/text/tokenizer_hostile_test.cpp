// Damaged and hostile tokenizer.json: each is refused with the place and what stands there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "text/tokenizer.h"

namespace mettle {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

std::string small_text() {
  std::ifstream file(std::string(METTLE_SOURCE_DIR) + "/tests/data/tokenizer_components.jsonl");
  std::string line;
  std::getline(file, line);
  return line;
}

void expect_refused(const std::string& text, const std::string& message) {
  try {
    Tokenizer::from_json(text, "tokenizer.json");
    ADD_FAILURE() << "accepted; should say " << message;
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kBadModel);
    EXPECT_THAT(e.message, HasSubstr(message));
    EXPECT_THAT(e.message, HasSubstr("tokenizer.json"));
    EXPECT_LT(e.message.size(), 2000u);
  }
}

Json added(int64_t id, const std::string& content) { return {{"id", id}, {"content", content}}; }
Json split(Json pattern, const std::string& behavior) {
  return {{"type", "Split"}, {"pattern", std::move(pattern)}, {"behavior", behavior}, {"invert", false}};
}

TEST(TokenizerFile, EachFaultIsNamed) {
  const Json level = {{"type", "ByteLevel"}};
  struct {
    std::function<void(Json&)> damage;
    std::string message;
  } const cases[] = {
      {[](Json& j) { j.erase("model"); }, R"(must have "model", got none)"},
      {[](Json& j) { j["model"] = 3; }, "tokenizer.json.model: must be an object, got 3"},
      {[](Json& j) { j["model"]["type"] = "Unigram"; }, R"(model.type: must be "BPE", got "Unigram")"},
      {[](Json& j) { j["model"]["type"] = 7; }, "model.type: must be a string, got 7"},
      {[](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout: must be 0 or absent, got 0.1"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
       R"(end_of_word_suffix: must be empty (byte-level BPE), got "</w>")"},
      {[](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix: must be empty"},
      {[](Json& j) { j["model"]["ignore_merges"] = "yes"; }, R"(ignore_merges: must be true or false, got "yes")"},
      {[](Json& j) { j["model"]["unk_token"] = "<none>"; },
       R"(unk_token: must be a token of the vocabulary, got "<none>")"},

      {[](Json& j) { j["model"].erase("vocab"); }, R"(model: must have "vocab", got none)"},
      {[](Json& j) { j["model"]["vocab"] = Json::array(); }, "model.vocab: must be an object, got an array"},
      {[](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab: must have at least one token"},
      {[](Json& j) { j["model"]["vocab"]["x!"] = -1; }, "ids must be integers from 0 to 4194304, got -1 for \"x!\""},
      {[](Json& j) { j["model"]["vocab"]["x!"] = 4194305; }, "got 4194305 for \"x!\""},
      {[](Json& j) { j["model"]["vocab"]["x!"] = 1e300; }, "got 1e+300 for \"x!\""},
      {[](Json& j) { j["model"]["vocab"]["x!"] = "12"; }, R"(got "12" for "x!")"},
      {[](Json& j) { j["model"]["vocab"]["x!"] = 65; }, "ids must differ, got 65 for"},

      {[](Json& j) { j["model"].erase("merges"); }, R"(model: must have "merges", got none)"},
      {[](Json& j) { j["model"]["merges"] = Json::array(); }, "model.merges: must have at least one merge"},
      {[](Json& j) { j["model"]["merges"] = "a b"; }, R"(model.merges: must be an array, got "a b")"},
      {[](Json& j) { j["model"]["merges"][2] = Json{"h"}; }, R"(merges[2]: must be "a b" or ["a", "b"], got an array)"},
      {[](Json& j) {
         j["model"]["merges"][2] = Json{"h", 1};
       },
       "merges[2]: must be"},
      {[](Json& j) { j["model"]["merges"][2] = "a b c"; }, R"(merges[2]: must be "a b" or ["a", "b"], got "a b c")"},
      {[](Json& j) { j["model"]["merges"][2] = nullptr; }, "merges[2]: must be \"a b\" or [\"a\", \"b\"], got null"},
      {[](Json& j) {
         j["model"]["merges"][1] = Json{"h", "nope"};
       },
       R"(merges[1]: must refer to tokens of the vocabulary, got "nope")"},
      {[](Json& j) {
         j["model"]["merges"][1] = Json{"q", "q"};
       },
       R"(merges[1]: must refer to tokens of the vocabulary, got "qq")"},

      {[](Json& j) { j["added_tokens"] = 1; }, "added_tokens: must be an array, got 1"},
      {[](Json& j) { j["added_tokens"] = {3}; }, "added_tokens[0]: must be an object, got 3"},
      {[](Json& j) {
         j["added_tokens"] = {{{"content", "<x>"}}};
       },
       R"(added_tokens[0]: must have "id", got none)"},
      {[](Json& j) {
         j["added_tokens"] = {{{"id", 900}}};
       },
       R"(added_tokens[0]: must have "content", got none)"},
      {[](Json& j) { j["added_tokens"] = {added(-3, "<x>")}; },
       "added_tokens[0].id: must be from 0 to 4194304, got -3"},
      {[](Json& j) { j["added_tokens"] = {added(1 << 23, "<x>")}; }, "must be from 0 to 4194304, got 8388608"},
      {[](Json& j) { j["added_tokens"] = {added(65, "<x>")}; },
       R"(added_tokens[0]: ids must differ, got 65 for "<x>" and for)"},
      {[](Json& j) {
         j["added_tokens"] = {added(900, "<x>"), added(900, "<y>")};
       },
       R"(added_tokens[1]: ids must differ, got 900 for "<y>" and for "<x>")"},
      {[](Json& j) {
         j["added_tokens"] = {added(900, "<x>"), added(901, "<x>")};
       },
       R"(added tokens must differ, got "<x>" twice)"},
      {[](Json& j) { j["added_tokens"] = {added(900, "hello")}; }, "id must be that of the vocabulary for \"hello\""},
      {[](Json& j) { j["added_tokens"] = {added(900, "<x>")}, j["added_tokens"][0]["lstrip"] = 1; },
       "lstrip: must be true or false, got 1"},

      {[](Json& j) { j["added_tokens"] = {added(900, std::string(257, 'x'))}; },
       "added_tokens[0].content: may have 256 bytes, got 257"},

      {[](Json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       },
       R"(normalizer.type: must be a normalizer that is known)"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Precompiled"}};
       },
       R"(got "Precompiled")"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
       },
       "must not be empty"},
      {[](Json& j) { j["pre_tokenizer"] = nullptr; }, R"(must have "pre_tokenizer", got none)"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       R"(must be a pre-tokenizer that is known (Sequence, Split, Digits, ByteLevel), got "Metaspace")"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Digits"}};
       },
       "pre_tokenizer: must be or contain ByteLevel"},
      {[&](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {level, {{"type", "Digits"}}}}};
       },
       "pretokenizers[1].type: must not follow ByteLevel"},
      {[&](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split({{"Regex", "(("}}, "Isolated"), level}}};
       },
       "pretokenizers[0].pattern.Regex: the pattern must be one that PCRE2 can run"},
      {[&](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split({{"Regex", "x"}}, "Sideways"), level}}};
       },
       "behavior: must be one of Isolated, Removed"},
      {[&](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split(5, "Isolated"), level}}};
       },
       "pretokenizers[0].pattern: must be an object, got 5"},
      {[&](Json& j) {
         Json deep = level;
         for (int i = 0; i < 20; ++i) deep = {{"type", "Sequence"}, {"pretokenizers", {deep}}};
         j["pre_tokenizer"] = deep;
       },
       "sequences may nest 8 deep, got more"},

      {[](Json& j) { j["decoder"] = nullptr; }, R"(must have "decoder", got none)"},
      {[](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       R"(decoder.type: must be ByteLevel, or a Sequence of ByteLevel and Fuse, got "WordPiece")"},
      {[](Json& j) {
         j["decoder"] = {{"type", "Sequence"}, {"decoders", Json::array()}};
       },
       "must have a ByteLevel decoder"},
      {[](Json& j) {
         j["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}}}};
       },
       "decoders[0].type: must be ByteLevel first, then Fuse"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "Magic"}};
       },
       R"(post_processor.type: must be one of ByteLevel, TemplateProcessing, Sequence, RobertaProcessing, got "Magic")"},
  };
  const Json good = Json::parse(small_text());
  Tokenizer::from_json(good.dump(), "tokenizer.json");
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    Json json = good;
    c.damage(json);
    expect_refused(json.dump(), c.message);
  }
}

TEST(TokenizerFile, NotJson) {
  const std::string good = small_text();
  expect_refused("", "must be JSON, got 0 bytes");
  expect_refused("{", "must be JSON");
  expect_refused("[]", "must be an object, got an array");
  expect_refused("null", "must be an object, got null");
  expect_refused("\xFF\xFE", "must be JSON");
  expect_refused(std::string(5000, '['), "must be JSON");
  expect_refused(std::string(100'000, '[') + std::string(100'000, ']'), "must be JSON");
  expect_refused(good + "}", "must be JSON");
  std::string deep = "{\"added_tokens\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  expect_refused(deep, "must be JSON");
  std::string invalid = good;
  invalid[invalid.find("vocab")] = '\xFF';
  expect_refused(invalid, "must be JSON");
  // The same token twice, which a JSON library would drop silently.
  std::string twice = good;
  twice.insert(twice.find("\"vocab\": {") + 10, "\"hello\": 3000, ");
  expect_refused(twice, "tokens must differ, got \"hello\" twice");
}

TEST(TokenizerFile, TruncatedAnywhere) {
  const std::string good = small_text();
  for (size_t size = 0; size + 1 < good.size(); size += 1 + size / 97) {
    EXPECT_THROW(Tokenizer::from_json(good.substr(0, size), "tokenizer.json"), Error) << size;
  }
}

TEST(TokenizerFile, SizeAndAbsence) {
  const TemporaryFolder folder;
  expect_refused(std::string((64 << 20) + 1, ' '), "may have 67108864 bytes, got 67108865");
  const std::string path = folder.write("tokenizer.json", "{}");
  std::filesystem::resize_file(path, size_t{70} << 20);
  EXPECT_THROW(Tokenizer::from_file(path), Error);
  std::filesystem::remove(path);
  try {
    Tokenizer::from_file(path);
    ADD_FAILURE() << "loaded a file that is not there";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kBadModel);
    EXPECT_THAT(e.message, HasSubstr(path));
  }
}

TEST(TokenizerFile, ANormalizerThatMultipliesTheText) {
  Json json = Json::parse(small_text());
  const Json grow = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaaaaaaaa"}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json(30, grow)}};
  const Tokenizer tokenizer = Tokenizer::from_json(json.dump(), "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("hello"), Tokenizer::from_json(small_text(), "tokenizer.json").encode("hello"));
  try {
    tokenizer.encode("banana");
    ADD_FAILURE() << "made 16^30 letters";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kBadModel);
    EXPECT_THAT(e.message, HasSubstr("normalizer: may make 1120 bytes of this text, got 1121 and more"));
  }
  json["normalizer"]["normalizers"] = Json(33, grow);
  expect_refused(json.dump(), "normalizers[32]: may have 32 steps, got more");
}

// Odd but legal: these load, and encode what they can.
TEST(TokenizerFile, OddButLegal) {
  Json json = Json::parse(small_text());
  json["model"]["vocab"]["far away"] = 4'194'304;
  json["added_tokens"] = {added(5000, ""), added(5001, std::string(256, 'x'))};
  json["model"].erase("type");
  json["model"]["merges"].insert(json["model"]["merges"].begin(), "#version: 0.2");
  const Tokenizer tokenizer = Tokenizer::from_json(json.dump(), "tokenizer.json");
  EXPECT_EQ(tokenizer.vocab_size(), 4'194'305);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{4'194'304, 5000, 4000}, false), "far away");
  EXPECT_EQ(tokenizer.encode(std::string(512, 'x')), (std::vector<int32_t>{5001, 5001}));
  EXPECT_EQ(tokenizer.encode(std::string(255, 'x')).size(), 255u);
}

}  // namespace
}  // namespace mettle

#include "load/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "load/report.h"

namespace mettle {
namespace {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::from_file(METTLE_SOURCE_DIR "/models/mettle-tiny/tokenizer.json");
  return t;
}
int tokens_of(const std::string& text) { return static_cast<int>(tokenizer().encode(text).size()); }
int words_of(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), ' ')) + 1; }

std::string failure(const DatasetOptions& options, Code code) {
  try {
    make_dataset(options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.message;
    return e.message;
  }
  return "no failure";
}

TEST(Dataset, TextsHaveExactlyTheTokensAskedFor) {
  for (const int tokens : {1, 2, 3, 7, 64, 1000})
    for (const uint64_t seed : {0, 1, 2}) EXPECT_EQ(tokens_of(random_text(tokens, seed, &tokenizer())), tokens);
  EXPECT_EQ(words_of(random_text(50, 1, nullptr)), 50);
}

TEST(Dataset, RandomPromptsAreCountedDistinctAndRepeatable) {
  const DatasetOptions o = {.count = 20, .input_tokens = 40, .output_tokens = 10, .seed = 5, .tokenizer = &tokenizer()};
  const std::vector<LoadPrompt> prompts = make_dataset(o);
  std::set<std::string> texts;
  for (const LoadPrompt& p : prompts) {
    EXPECT_EQ(p.input_tokens, 40);
    EXPECT_EQ(tokens_of(p.text), 40);
    EXPECT_EQ(p.output_tokens, 10);
    EXPECT_EQ(p.conversation, -1);
    texts.insert(p.text);
  }
  EXPECT_EQ(texts.size(), 20u);
  EXPECT_EQ(make_dataset(o)[19].text, prompts[19].text);
  DatasetOptions other = o;
  other.seed = 6;
  EXPECT_NE(make_dataset(other)[0].text, prompts[0].text);
}

TEST(Dataset, LengthsAreDrawnFromTheWholeRange) {
  const std::vector<LoadPrompt> prompts =
      make_dataset({.count = 400, .input_tokens = 10, .output_tokens = 20, .range = 0.5});
  std::set<int> inputs, outputs;
  for (const LoadPrompt& p : prompts) {
    inputs.insert(words_of(p.text));
    outputs.insert(p.output_tokens);
    EXPECT_EQ(p.input_tokens, 0);  // nobody counted
  }
  EXPECT_EQ(*inputs.begin(), 5);
  EXPECT_EQ(*inputs.rbegin(), 15);
  EXPECT_EQ(inputs.size(), 11u);
  EXPECT_EQ(*outputs.begin(), 10);
  EXPECT_EQ(*outputs.rbegin(), 30);
}

TEST(Dataset, PrefixesAreSharedTokenByToken) {
  const std::vector<LoadPrompt> prompts = make_dataset({.kind = DatasetKind::kSharedPrefix,
                                                        .count = 7,
                                                        .input_tokens = 5,
                                                        .prefix_tokens = 30,
                                                        .prefixes = 3,
                                                        .tokenizer = &tokenizer()});
  std::set<std::vector<int32_t>> prefixes;
  for (const LoadPrompt& p : prompts) {
    std::vector<int32_t> ids = tokenizer().encode(p.text);
    ASSERT_EQ(ids.size(), 35u);
    ids.resize(30);
    prefixes.insert(ids);
  }
  EXPECT_EQ(prefixes.size(), 3u);
}

TEST(Dataset, TurnsBelongToConversations) {
  const std::vector<LoadPrompt> prompts =
      make_dataset({.kind = DatasetKind::kMultiTurn, .count = 7, .input_tokens = 3, .turns = 3});
  std::vector<int> conversations;
  for (const LoadPrompt& p : prompts) conversations.push_back(p.conversation);
  EXPECT_THAT(conversations, testing::ElementsAre(0, 0, 0, 1, 1, 1, 2));
}

TEST(Dataset, OptionsHaveLimits) {
  EXPECT_THAT(failure({.count = 0}, Code::kInvalidRequest), HasSubstr("count: must be in 1..1000000, got 0"));
  EXPECT_THAT(failure({.input_tokens = 0}, Code::kInvalidRequest), HasSubstr("input_tokens"));
  EXPECT_THAT(failure({.output_tokens = -1}, Code::kInvalidRequest), HasSubstr("-1"));
  EXPECT_THAT(failure({.range = 1}, Code::kInvalidRequest), HasSubstr("range"));
  EXPECT_THAT(failure({.range = NAN}, Code::kInvalidRequest), HasSubstr("nan"));
  EXPECT_THAT(failure({.count = 1000, .input_tokens = 1 << 20}, Code::kInvalidRequest), HasSubstr("in all"));
  EXPECT_THAT(failure({.turns = 0}, Code::kInvalidRequest), HasSubstr("turns"));
}

class DatasetFile : public testing::Test {
 protected:
  std::vector<LoadPrompt> read(const std::string& text, int count, const Tokenizer* t = nullptr) {
    return make_dataset(options(text, count, t));
  }
  DatasetOptions options(const std::string& text, int count, const Tokenizer* t = nullptr) {
    std::ofstream(path_, std::ios::binary) << text;
    return {.kind = DatasetKind::kFile, .count = count, .output_tokens = 9, .path = path_, .tokenizer = t};
  }
  std::string fails(const std::string& text) { return failure(options(text, 3), Code::kBadModel); }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/data";
};

TEST_F(DatasetFile, LinesWithPromptsInOrderAndAgain) {
  const auto prompts = read("{\"prompt\":\"a\",\"output_tokens\":3}\r\n\n  \n{\"prompt\":\"b c\"}", 5);
  std::string texts;
  for (const LoadPrompt& p : prompts) texts += p.text + "|";
  EXPECT_EQ(texts, "a|b c|a|b c|a|");
  EXPECT_EQ(prompts[0].output_tokens, 3);
  EXPECT_EQ(prompts[1].output_tokens, 9);
  EXPECT_EQ(prompts[1].input_tokens, 0);
}

TEST_F(DatasetFile, ShareGptAndMessages) {
  const std::string text =
      R"( [ {"id":"x","conversations":[{"from":"system","value":"s"},{"from":"human","value":"q \" ] }"},
      {"from":"gpt","value":"one two three"},{"from":"human","value":"more"}]} ,
      {"conversations":[]}, {"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"four"}]},
      {"messages":[{"role":"user","content":[{"type":"text"}]}]} ] )";
  const auto prompts = read(text, 2);
  EXPECT_EQ(prompts[0].text, "q \" ] }");
  EXPECT_EQ(prompts[0].output_tokens, 3);
  EXPECT_EQ(prompts[1].text, "u");
  EXPECT_EQ(prompts[1].output_tokens, 1);
  const auto counted = read(text, 1, &tokenizer());
  EXPECT_EQ(counted[0].output_tokens, tokens_of("one two three"));
  EXPECT_EQ(counted[0].input_tokens, tokens_of("q \" ] }"));
}

TEST_F(DatasetFile, WhatIsWrongIsSaidWithItsPlace) {
  EXPECT_THAT(fails(""), HasSubstr("has none"));
  EXPECT_THAT(fails("\n\n"), HasSubstr("has none"));
  EXPECT_THAT(fails("[]"), HasSubstr("has none"));
  EXPECT_THAT(fails("{\"prompt\":\"a\"}\nnot json\n"), HasSubstr("line 2: must be JSON"));
  EXPECT_THAT(fails("{\"prompt\":\"\xff\"}"), HasSubstr("line 1"));
  EXPECT_THAT(fails("5"), HasSubstr("must be an object, is number"));
  EXPECT_THAT(fails("{\"text\":\"a\"}"), HasSubstr("must have a prompt"));
  EXPECT_THAT(fails("{\"prompt\":\"a\",\"output_tokens\":0}"), HasSubstr("output_tokens must be in 1..1048576, got 0"));
  EXPECT_THAT(fails("{\"prompt\":\"a\",\"output_tokens\":1.5}"), HasSubstr("1.5"));
  EXPECT_THAT(fails("[{\"prompt\":\"a\"}"), HasSubstr("ends"));
  EXPECT_THAT(fails("[{\"prompt\":\"a\"},{\"prompt\":\"b"), HasSubstr("entry 2: must be whole"));
  EXPECT_THAT(fails("[{\"prompt\":\"a\"} {\"prompt\":\"b\"}]"), HasSubstr("entry 1: must be JSON"));
  EXPECT_THAT(fails("[," + std::string("{}]")), HasSubstr("entry 1"));
  EXPECT_THAT(failure({.kind = DatasetKind::kFile, .path = folder_.path() + "/none"}, Code::kBadModel),
              HasSubstr("none"));
}

TEST_F(DatasetFile, HostileFilesAreRefused) {
  EXPECT_THAT(fails(std::string(100000, '[')), HasSubstr("entry 1"));
  EXPECT_THAT(fails("{\"prompt\":" + std::string(100, '[') + std::string(100, ']') + "}"),
              HasSubstr("nested at most 32"));
  EXPECT_THAT(fails("{\"prompt\":\"" + std::string(size_t{17} << 20, 'x') + "\"}"),
              HasSubstr("at most 16777216 bytes"));
  EXPECT_THAT(fails("[{\"prompt\":\"" + std::string(size_t{17} << 20, 'x') + "\"}]"),
              HasSubstr("at most 16777216 bytes"));
}

// --- reports

LoadRun run_of(double seconds, double ttft, const char* error = "") {
  LoadRun run;
  run.seconds = seconds;
  run.requests.resize(1);
  LoadRequest& r = run.requests[0];
  r.ttft_ms = ttft;
  r.e2e_ms = ttft + 100;
  r.itl_ms = {60, 40};
  r.input_tokens = 5;
  r.output_tokens = 3;
  r.text = "a b";
  r.error = error;
  r.error_kind = r.error.empty() ? "" : "cut";
  return run;
}

LoadReport two_levels() {
  LoadReport report{
      .url = "http://h:1", .model = "m", .backend = "chat", .dataset = "random", .goals = {.ttft_ms = 100}};
  report.levels.push_back({.name = "1", .concurrency = 1, .repeats = {run_of(1, 50), run_of(1, 150)}});
  report.levels.push_back(
      {.name = "8", .concurrency = 8, .repeats = {run_of(0.25, 200), run_of(0.5, 1, "<cut> & gone")}});
  return report;
}

TEST(Report, RepeatsAreTakenTogetherOneAfterTheOther) {
  const LoadRun run = together(two_levels().levels[0].repeats);
  EXPECT_EQ(run.seconds, 2);
  EXPECT_EQ(run.requests.size(), 2u);
  EXPECT_EQ(run.requests[1].start_s, 1);
  EXPECT_EQ(figures_of(run).peak_concurrency, 1);
  EXPECT_EQ(together({}).seconds, 0);
}

TEST(Report, RowsHaveAColumnForEachLevel) {
  const auto rows = report_rows(two_levels());
  const auto row = [&](const std::string& name) {
    for (const ReportRow& r : rows)
      if (r.name == name) return r.values;
    return std::vector<std::string>{"no row " + name};
  };
  EXPECT_THAT(row("Successful requests:"), testing::ElementsAre("2", "1"));
  EXPECT_THAT(row("Failed requests:"), testing::ElementsAre("0", "1"));
  EXPECT_THAT(row("Mean TTFT (ms):"), testing::ElementsAre("100.00 ± 635.30", HasSubstr("200.00 ± ")));
  EXPECT_THAT(row("Request goodput (req/s):"), testing::ElementsAre("0.50", "0.00"));
  EXPECT_THAT(row("Mean TPOT (ms):"), testing::ElementsAre("50.00 ± 0.00", HasSubstr("50.00")));
  EXPECT_THAT(row("Total generated tokens:"), testing::ElementsAre("6", "3"));
}

TEST(Report, TextHasTableBarsAndErrors) {
  const std::string text = report_text(two_levels(), false);
  EXPECT_THAT(text, HasSubstr(" Serving Benchmark Result "));
  EXPECT_THAT(text, HasSubstr("8  ████████████████████████████████████████ "));
  EXPECT_THAT(text, HasSubstr("<cut> & gone"));
}

TEST(Report, HtmlNeedsNothingElseAndEscapesWhatServersSay) {
  const std::string html = report_html(two_levels());
  EXPECT_THAT(html, HasSubstr("&lt;cut&gt; &amp; gone"));
  EXPECT_THAT(html, testing::Not(HasSubstr("<cut>")));
  EXPECT_THAT(html, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(html, testing::Not(HasSubstr("inf\"")));
  for (const char* outside : {"src=", "href=", "@import", "url("}) EXPECT_THAT(html, testing::Not(HasSubstr(outside)));
}

TEST(Report, ALevelWhereNothingWentWellIsStillAReport) {
  LoadReport report = two_levels();
  report.levels = {{.name = "1", .concurrency = 1, .repeats = {run_of(1, 5, "gone")}}};
  EXPECT_THAT(report_text(report, false), HasSubstr("gone"));
  EXPECT_THAT(report_html(report), testing::Not(HasSubstr("nan")));
  EXPECT_THAT(report_json(report, true), HasSubstr("\"completed\":0"));
}

}  // namespace
}  // namespace mettle

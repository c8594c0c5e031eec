#include "server/completion.h"

#include <gtest/gtest.h>

#include <future>

#include "server/fake_engine.h"
#include "server/generation.h"
#include "server/test_model.h"

namespace mettle {
namespace {

struct Played {
  ReplyDelta reply;
  std::vector<std::string> pieces;  // content as it came
  std::vector<TokenLogprob> logprobs;
  Finish finish = Finish::kNone;
  int tokens = 0, finals = 0;
  bool stopped_by_text = false;
};

// Plays ids into a Completion; the last event carries `finish`.
Played play(const std::vector<int32_t>& ids, CompletionOptions options, Finish finish = Finish::kLength) {
  Completion completion(tiny_text_model().tokenizer(), std::move(options));
  Played played;
  for (size_t i = 0; i < ids.size(); ++i) {
    const CompletionDelta d =
        completion.push({.token = ids[i], .logprob = -1, .finish = i + 1 == ids.size() ? finish : Finish::kNone});
    played.reply.content += d.reply.content;
    played.reply.reasoning += d.reply.reasoning;
    if (!d.reply.content.empty()) played.pieces.push_back(d.reply.content);
    for (const ToolCall& call : d.reply.tool_calls) played.reply.tool_calls.push_back(call);
    played.logprobs.insert(played.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
    if (d.finish != Finish::kNone) {
      played.finish = d.finish;
      ++played.finals;
    }
  }
  played.tokens = completion.tokens();
  played.stopped_by_text = completion.stopped_by_text();
  return played;
}

std::vector<int32_t> bytewise(std::string_view text) {  // one token per character, so that stops are cut everywhere
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(*tiny_text_model().tokenizer().id_of(std::string_view(&c, 1)));
  return ids;
}

TEST(Completion, GivesTextOutAndEndsOnce) {
  const Played p = play(tiny_ids("The quick brown fox."), {});
  EXPECT_EQ(p.reply.content, "The quick brown fox.");
  EXPECT_EQ(p.finish, Finish::kLength);
  EXPECT_EQ(p.finals, 1);
  EXPECT_EQ(p.tokens, static_cast<int>(tiny_ids("The quick brown fox.").size()));
}

TEST(Completion, StopStringsAreCutExactlyWhateverTheTokens) {
  const std::string text = "The quick brown fox jumps over the lazy dog";
  struct Case {
    std::vector<std::string> stop;
    std::string expect;
    bool stopped;
  };
  const std::vector<Case> cases = {
      {{"own fox"}, "The quick br", true},
      {{"T"}, "", true},
      {{"dog"}, "The quick brown fox jumps over the lazy ", true},
      {{"dogs"}, text, false},
      {{"fox j", "quick"}, "The ", true},
      {{"brown fox", "brown"}, "The quick ", true},
      {{"x jumps over a", "over the"}, "The quick brown fox jumps ", true},
      {{"nothing of that"}, text, false},
  };
  for (const Case& c : cases)
    for (const auto& ids : {tiny_ids(text), bytewise(text)}) {
      const Played p = play(ids, {.stop = c.stop});
      EXPECT_EQ(p.reply.content, c.expect) << c.stop[0];
      EXPECT_EQ(p.stopped_by_text, c.stopped) << c.stop[0];
      EXPECT_EQ(p.finish, c.stopped ? Finish::kStop : Finish::kLength) << c.stop[0];
      EXPECT_EQ(p.finals, 1);
    }
}

TEST(Completion, HoldsNoMoreThanMayBecomeAStop) {
  const Played p = play(bytewise("abcabdx"), {.stop = {"abd"}});
  EXPECT_EQ(p.reply.content, "abc");
  EXPECT_EQ(p.pieces, (std::vector<std::string>{"abc"})) << "ab waits, then c decides";
  const Played q = play(bytewise("aab"), {.stop = {"ac"}});
  EXPECT_EQ(q.pieces, (std::vector<std::string>{"a", "ab"}));
}

TEST(Completion, AStopInsideOfACharacterHeldBack) {
  // The euro sign comes as bytes; the stop string begins with it.
  const std::string euro = "\xE2\x82\xAC";
  for (const auto& ids : {tiny_ids("1" + euro + "2"), bytewise("1" + euro + "2")}) {
    EXPECT_EQ(play(ids, {.stop = {euro}}).reply.content, "1");
    EXPECT_EQ(play(ids, {}).reply.content, "1" + euro + "2");
  }
  // Half a character waits for its rest, and is replaced when none comes.
  EXPECT_EQ(play(bytewise("1\xE2\x82"), {}).pieces, (std::vector<std::string>{"1", "\xEF\xBF\xBD"}));
}

TEST(Completion, MinTokensComeBeforeStops) {
  const std::string text = "a.b.c.d";
  EXPECT_EQ(play(bytewise(text), {.stop = {"."}}).reply.content, "a");
  EXPECT_EQ(play(bytewise(text), {.stop = {"."}, .min_tokens = 3}).reply.content, "a.b");
}

TEST(Completion, LogprobsGoWithTheTextThatWasGivenOut) {
  const std::vector<int32_t> ids = bytewise("one two");
  const Played all = play(ids, {.logprobs = true});
  ASSERT_EQ(all.logprobs.size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(all.logprobs[i].token, ids[i]);
    EXPECT_EQ(all.logprobs[i].text_offset, i);
  }
  const Played cut = play(ids, {.stop = {" t"}, .logprobs = true});
  EXPECT_EQ(cut.reply.content, "one");
  EXPECT_EQ(cut.logprobs.size(), 3u);
  EXPECT_EQ(cut.tokens, 5);
}

TEST(Completion, ReasoningAndToolCallsAreSplitOffTheSameInAnyPieces) {
  const std::string text =
      "I "
      "think.\n</think>\n\nHere:\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</"
      "tool_call>";
  const ReplyParserOptions parser{
      .starts_in_reasoning = true,
      .parse_tool_calls = true,
      .tools_json =
          R"([{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}])"};
  for (const auto& ids : {tiny_ids(text), bytewise(text)}) {
    const Played p = play(ids, {.reply = parser}, Finish::kLength);
    EXPECT_EQ(p.reply.reasoning.substr(0, 8), "I think.");
    EXPECT_EQ(p.reply.content.substr(0, 5), "Here:");
    ASSERT_EQ(p.reply.tool_calls.size(), 1u);
    EXPECT_EQ(p.reply.tool_calls[0].name, "add");
  }
}

TEST(Completion, EventsAfterTheEndAreIgnored) {
  Completion completion(tiny_text_model().tokenizer(), {.stop = {"b"}});
  const auto ids = bytewise("abc");
  completion.push({.token = ids[0]});
  EXPECT_EQ(completion.push({.token = ids[1]}).finish, Finish::kStop);
  EXPECT_TRUE(completion.push({.token = ids[2]}).empty());
  EXPECT_TRUE(completion.push({.finish = Finish::kCancelled}).empty());
  EXPECT_EQ(completion.tokens(), 2);
}

FakeEngine::Script says(const std::string& text, int32_t stop = 6137) {
  return [ids = tiny_ids(text), stop](const auto&, const auto&) { return FakeReply{ids, stop, {}}; };
}

GenerationRequest request(int n = 1) {
  GenerationRequest r;
  r.prompts = {tiny_ids("Hello")};
  r.n = n;
  r.sampling.max_tokens = 100;
  return r;
}

TEST(Generation, RunsToItsEnd) {
  FakeEngine engine(6144, 4096, says("an answer"));
  const CompletionResult r = complete(engine, tiny_text_model().tokenizer(), request());
  EXPECT_EQ(r.content, "an answer");
  EXPECT_EQ(r.finish, Finish::kStop);
  EXPECT_EQ(r.completion_tokens, static_cast<int64_t>(tiny_ids("an answer").size()) + 1) << "the stop token counts";
  EXPECT_EQ(engine.stats().requests_finished, 1u);
}

TEST(Generation, AStopStringCancelsInTheEngine) {
  FakeEngine engine(6144, 4096, says("one two", -1));
  GenerationRequest r = request();
  r.sampling.max_tokens = 1 << 30;
  r.completion.stop = {"two"};
  EXPECT_EQ(complete(engine, tiny_text_model().tokenizer(), r).content, "one ");
  engine.wait_idle();
  EXPECT_EQ(engine.stats().requests_cancelled, 1u);
}

TEST(Generation, ErrorsAndCancelsComeBack) {
  FakeEngine broken(6144, 4096, [](const auto&, const auto&) {
    return FakeReply{tiny_ids("so far"), -1, "row 3: nan"};
  });
  const CompletionResult r = complete(broken, tiny_text_model().tokenizer(), request());
  EXPECT_EQ(r.finish, Finish::kError);
  EXPECT_EQ(r.error, "row 3: nan");
  FakeEngine endless(6144, 4096, says("a", -1));
  GenerationRequest long_request = request();
  long_request.sampling.max_tokens = 1 << 30;
  int pieces = 0;
  const CompletionResult c = complete(endless, tiny_text_model().tokenizer(), long_request,
                                      [&](const CompletionDelta&) { return ++pieces < 10; });
  EXPECT_EQ(c.finish, Finish::kCancelled);
  endless.wait_idle();
}

TEST(Generation, SeedsOfSeveralSequencesDiffer) {
  FakeEngine engine(6144, 4096, says("x"));
  GenerationRequest r = request(3);
  r.sampling.seed = 7;
  {
    Generation generation(
        engine, tiny_text_model().tokenizer(), r, [] {}, nullptr);
    engine.wait_idle();
  }
  const auto submitted = engine.submitted();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_EQ(submitted[0].second.seed, 7u);
  EXPECT_NE(submitted[1].second.seed, submitted[0].second.seed);
  EXPECT_NE(submitted[2].second.seed, submitted[1].second.seed);
}

// The engine's thread stands in the middle of telling while the client leaves.
TEST(Generation, MetricsOutliveItUntilTheEngineHasToldTheEnd) {
  std::promise<void> told, go_on;
  auto metrics = std::make_shared<Metrics>();
  const std::weak_ptr<Metrics> alive = metrics;
  {
    FakeEngine engine(6144, 4096, says("x", -1));
    GenerationRequest r = request();
    r.sampling.max_tokens = 1 << 30;
    {
      const auto wake = [&] {
        told.set_value();
        go_on.get_future().wait();
      };
      const Generation generation(engine, tiny_text_model().tokenizer(), r, wake, std::move(metrics));
      told.get_future().wait();
    }
    EXPECT_FALSE(alive.expired());
    go_on.set_value();
    engine.wait_idle();
  }
  EXPECT_TRUE(alive.expired());
}

TEST(Generation, WhenOneSequenceIsRefusedNoneRuns) {
  FakeEngine engine(6144, 4096, says("x", -1));
  engine.max_sequences = 2;
  engine.hold();
  EXPECT_THROW(Generation(
                   engine, tiny_text_model().tokenizer(), request(3), [] {}, nullptr),
               Error);
  engine.wait_idle();
  EXPECT_EQ(engine.stats().requests_cancelled, 2u);
}

}  // namespace
}  // namespace mettle

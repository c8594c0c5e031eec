#include <gtest/gtest.h>

#include <string>

#include "diagnose/line_head.h"
#include "diagnose/line_time.h"

namespace mettle::diagnose {
namespace {

struct Want {
  const char* line;
  const char* body;
  const char* rank;
  Level level;
  bool timed;
};

TEST(LineHead, RankTimeLevelAndBodyOfEveryServer) {
  for (const Want& w : {
           Want{"(Worker_TP0 pid=12) ERROR 01-12 10:00:00 [core.py:7]   File \"a.py\"", "  File \"a.py\"", "0",
                Level::kError, true},
           Want{"(EngineCore_DP0 pid=12) INFO 01-12 10:00:00 [core.py:7] hello", "hello", "", Level::kInfo, true},
           Want{"(VllmWorker rank=3 pid=12) hello", "hello", "3", Level::kNone, false},
           Want{"[2026-01-12 10:00:00 TP3] hello", "hello", "3", Level::kNone, true},
           Want{"[2026-01-12 10:00:00 DP1 TP3 EP3] hello", "hello", "DP1 TP3 EP3", Level::kNone, true},
           Want{"[2026-01-12 10:00:00] hello", "hello", "", Level::kNone, true},
           Want{"[1,5]<stderr>:[01/12/2026-10:00:00] [TRT-LLM] [RANK 5] [E] hello", "hello", "5", Level::kError, true},
           Want{"[TensorRT-LLM][ERROR] hello", "hello", "", Level::kError, false},
           Want{"[rank3]:[E112 10:00:00.000 ProcessGroupNCCL.cpp:6] hello", "hello", "3", Level::kError, true},
           Want{"host:10:20 [2] NCCL WARN hello", "host:10:20 [2] NCCL WARN hello", "2", Level::kNone, false},
           Want{"2026-01-12T10:00:00.123456789Z stderr F hello", "hello", "", Level::kNone, true},
           Want{"Jan 12 10:00:00 node7 sglang[4100]: [2026-01-12 10:00:00 TP1] hello", "hello", "1", Level::kNone,
                true},
           Want{"vllm-1  | (APIServer pid=1) INFO:     hello", "hello", "", Level::kInfo, false},
           Want{"0.01.676.635 E llama_model_load: hello", "llama_model_load: hello", "", Level::kError, true},
           Want{"75.59.000.001 I srv  hello", "srv  hello", "", Level::kInfo, true},
           Want{"0.61.676.635 E hello", "0.61.676.635 E hello", "", Level::kNone, false},
           Want{"8.34.208.123 - GET", "8.34.208.123 - GET", "", Level::kNone, false},  // an address
           Want{"3: hello", "hello", "3", Level::kNone, false},
           Want{"[81234.120000] Out of memory", "Out of memory", "", Level::kNone, true},
           Want{"error: out of memory", "error: out of memory", "", Level::kError, false},
           Want{"I server: stopped", "server: stopped", "", Level::kInfo, false},
           Want{"Information is not a level", "Information is not a level", "", Level::kNone, false},
           Want{"[Autotuner]: Skipping tactic", "[Autotuner]: Skipping tactic", "", Level::kNone, false},
           Want{"(just a remark) hello", "(just a remark) hello", "", Level::kNone, false},
           Want{"[]", "[]", "", Level::kNone, false},
           Want{"[", "[", "", Level::kNone, false},
           Want{"", "", "", Level::kNone, false},
       }) {
    const Head head = parse_head(w.line);
    EXPECT_EQ(head.body, w.body) << w.line;
    EXPECT_EQ(rank_label(head.rank), w.rank) << w.line;
    EXPECT_EQ(head.level, w.level) << w.line;
    EXPECT_EQ(head.time_ms.has_value(), w.timed) << w.line;
  }
  EXPECT_TRUE(parse_head("[81234.120000] x").kernel);
  EXPECT_TRUE(parse_head("Jan 12 10:00:00 node7 kernel: NVRM: Xid").kernel);
  EXPECT_FALSE(parse_head("Jan 12 10:00:00 node7 sglang[1]: x").kernel);
}

TEST(LineHead, TheOutermostClockCounts) {
  const Head head = parse_head("2026-01-12T10:00:05.000Z stderr F [2026-01-12 03:00:00 TP1] x");
  EXPECT_EQ(head.time_ms, parse_time("2026-01-12 10:00:05").ms);
}

TEST(LineHead, RankLabels) {
  EXPECT_EQ(rank_label("TP3"), "3");
  EXPECT_EQ(rank_label("TP3 EP3"), "3");
  EXPECT_EQ(rank_label("PP1_TP0"), "PP1_TP0");
  EXPECT_EQ(rank_label("007"), "7");
  EXPECT_EQ(rank_label("0"), "0");
  EXPECT_EQ(rank_label(""), "");
}

TEST(LineTime, FormatsAndDistances) {
  const int64_t at = parse_time("2026-03-01T00:00:00Z").ms;
  EXPECT_EQ(at - parse_time("2026-02-28 23:59:59,500").ms, 500);
  EXPECT_EQ(parse_time("2028-03-01 00:00:00").ms - parse_time("2028-02-28 00:00:00").ms, 2 * 86'400'000);
  EXPECT_EQ(parse_time("2026-01-02 10:00:00.123456").ms % 1000, 123);
  EXPECT_FALSE(parse_time("2026-01-02 10:00:00.5").whole_seconds);
  EXPECT_EQ(parse_time("01/12/2026-10:00:00").ms, parse_time("2026-01-12 10:00:00").ms);
  EXPECT_EQ(parse_time("Jan  2 10:00:00").ms, parse_time("01-02 10:00:00").ms);
  EXPECT_EQ(parse_time("2.03.456.789 I x").ms, 123'456);
  EXPECT_EQ(parse_time("2.03.456.789 I x").clock, Clock::kStart);
  EXPECT_EQ(parse_time("10:00:00").ms, 36'000'000);
  EXPECT_EQ(parse_time("2026-01-02T10:00:00+02:00 x").length, 25u);
  for (const char* no :
       {"", "2026-01-02", "99:00:00", "2026-13-02 10:00:00", "10:00:00x", "1234567890", "Foo 12 10:00:00", "12.0, x"})
    EXPECT_EQ(parse_time(no).length, 0u) << no;
  EXPECT_EQ(parse_seconds("12.345678"), 12345);
  EXPECT_EQ(parse_time("10:00:00").clock, Clock::kDay);
  EXPECT_EQ(parse_time("Jan  2 10:00:00").clock, Clock::kYear);
  EXPECT_EQ(parse_time("2026-01-02 10:00:00").clock, Clock::kFull);
}

TEST(LineHead, TerminalCodes) {
  std::string clean;
  strip_terminal_codes("\x1b[1;31mError\x1b[0m: \x1b]0;title\aout \x1b[2Kof\x1b", clean);
  EXPECT_EQ(clean, "Error: out of");
  strip_terminal_codes("\x1b[", clean);
  EXPECT_EQ(clean, "");
}

TEST(LineHead, JsonLines) {
  std::string text;
  EXPECT_TRUE(unwrap_json(
      R"({"log":"say \"iommu=pt\"\u001b[0m\tx\n","stream":"stderr","time":"2026-01-12T10:00:00.5Z"})", text));
  EXPECT_EQ(text, "2026-01-12T10:00:00.5Z say \"iommu=pt\"\x1b[0m\tx");
  EXPECT_TRUE(unwrap_json(R"({"level": "error", "message": "out of memory"})", text));
  EXPECT_EQ(text, "out of memory");
  EXPECT_TRUE(unwrap_json(R"({"log":"cut here \)", text));
  EXPECT_TRUE(unwrap_json(R"({"log":"\u12)", text));
  EXPECT_FALSE(unwrap_json(R"({"log":12})", text));
  EXPECT_FALSE(unwrap_json(R"({"choices":[]})", text));
  EXPECT_FALSE(unwrap_json("{", text));
}

}  // namespace
}  // namespace mettle::diagnose

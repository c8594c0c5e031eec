#include "sweep/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/subprocess.h"
#include "base/temporary_folder.h"
#include "sweep/plot.h"
#include "sweep/skips.h"

namespace mettle::sweep {
namespace {

using testing::HasSubstr;
using testing::Not;

BenchPoint point(int concurrency, double throughput) {
  BenchPoint p;
  p.concurrency = concurrency;
  p.completed = 8;
  p.output_throughput = throughput;
  p.tpot_p50_ms = 1000 / throughput;
  p.ttft_p50_ms = 10;
  return p;
}

// Three cells: one that works, a faster one, one that failed with hostile text.
struct Sample {
  Plan plan = parse_plan(
      "[server]\ncommand = [\"serve\", \"it's\", \"--port\", \"{port}\"]\nenv = { A = \"x y\" }\n[[cell]]\nname = "
      "\"slow\"\n"
      "[[cell]]\nname = \"fast\"\n[[cell]]\nname = \"<b>|bad\"\n[canary]\nprompts = [{ prompt = \"p\\\"\\\\\", answer "
      "= "
      "\"a\" }]",
      "/plans/x.toml");
  std::vector<Row> rows;

  Sample() {
    for (const Cell& cell : plan.cells) {
      Row row;
      row.cell = &cell;
      row.state = RowState::kDone;
      row.result.name = cell.name;
      row.result.outcome = Outcome::kWorks;
      rows.push_back(row);
    }
    rows[0].result.bench = {point(1, 10), point(8, 20)};
    rows[1].result.bench = {point(1, 5), point(8, 30)};
    CellResult& bad = rows[2].result;
    bad.outcome = Outcome::kFailed;
    bad.cause = "WRONG_SM";
    bad.sentence = "<script>alert(1)</script> | `x`";
    bad.evidence = {"log.txt:1: ``` <i>"};
    bad.answers = {{"p", "</td>", "it is wrong"}};
  }
};

TEST(SweepReport, TheGoalPicksTheWinner) {
  Sample s;
  EXPECT_EQ(find_winner(s.plan, s.rows), 1);
  EXPECT_EQ(goal_text(s.plan, s.rows[1].result), "30.0 tok/s at 8");
  s.plan.goal = Goal::kTpot;
  EXPECT_EQ(find_winner(s.plan, s.rows), 0);
  s.rows[0].result.outcome = Outcome::kFailed;
  EXPECT_EQ(find_winner(s.plan, s.rows), 1);
  s.rows[1].state = RowState::kRunning;
  EXPECT_EQ(find_winner(s.plan, s.rows), -1);
  EXPECT_EQ(find_winner(s.plan, {}), -1);
}

TEST(SweepReport, TextOfServersIsNeverMarkup) {
  Sample s;
  const std::string html = report_html(s.plan, s.rows, 1), markdown = report_markdown(s.plan, s.rows, 1);
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
  EXPECT_THAT(html, Not(HasSubstr("<b>|bad")));
  EXPECT_THAT(html, Not(HasSubstr("\"</td>")));
  EXPECT_THAT(markdown, Not(HasSubstr(" <script>")));
  EXPECT_THAT(markdown, HasSubstr(" \\<script>alert"));
  EXPECT_THAT(markdown, HasSubstr("````\nlog.txt:1: ``` <i>\n````"));
  EXPECT_THAT(markdown, HasSubstr("\\<b>\\|bad"));
}

TEST(SweepReport, ThePageNeedsNothingElse) {
  Sample s;
  const std::string html = report_html(s.plan, s.rows, 1);
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(html, HasSubstr("width=device-width"));
  EXPECT_THAT(html, HasSubstr("<figcaption>Output throughput"));
  EXPECT_THAT(html, Not(HasSubstr("Power of the GPUs")));  // nothing was read
  s.rows[1].result.bench[0].power_w = 300;
  EXPECT_THAT(report_html(s.plan, s.rows, 1), HasSubstr("Power of the GPUs"));
}

TEST(SweepReport, NothingYetAndNothingWorks) {
  Sample s;
  for (Row& row : s.rows) row.state = RowState::kWaiting;
  EXPECT_THAT(report_markdown(s.plan, s.rows, -1), HasSubstr("3 not run"));
  EXPECT_THAT(report_html(s.plan, s.rows, -1), HasSubstr("No cell works"));
}

TEST(SweepReport, Ticks) {
  EXPECT_THAT(round_ticks(0), testing::ElementsAre(0, 0.25, 0.5, 0.75, 1));
  EXPECT_THAT(round_ticks(33), testing::ElementsAre(0, 10, 20, 30, 40));
  EXPECT_GE(round_ticks(1e9).back(), 1e9);
  EXPECT_EQ(round_ticks(std::nan("")).back(), 1);
  EXPECT_EQ(svg({"t", "x", "y", {{"a", 0, {{1, std::nan("")}}}}}), "");
}

TEST(SweepReport, TheRecipeIsOneThatAShellAndSystemdReadBack) {
  Sample s;
  TemporaryFolder folder;
  write_reports(s.plan, s.rows, 1, folder.path());
  const std::string command = read_small((folder / "recipe/command.sh").string());
  EXPECT_THAT(command, HasSubstr("export A='x y'\n"));
  EXPECT_THAT(command, HasSubstr("'it'\\''s' --port 8000"));
  const std::string unit = read_small((folder / "recipe/server.service").string());
  EXPECT_THAT(unit, HasSubstr("\"it's\" \"--port\" \"8000\""));
  EXPECT_THAT(unit, HasSubstr("KillMode=mixed"));
  EXPECT_EQ(read_small((folder / "recipe/environment").string()), "A='x y'\n");
  // A prompt with quotes and backslashes is still Python.
  const SubprocessResult compiled =
      run_subprocess({{"/bin/sh", "-c", "python3 -c \"import ast,sys; ast.parse(open(sys.argv[1]).read())\" \"$0\"",
                       (folder / "recipe/replay.py").string()}});
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
  write_reports(s.plan, s.rows, -1, folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / "recipe"));
}

TEST(SweepReport, WordsOfSystemd) {
  EXPECT_EQ(systemd_word("a\"b\\c%d$e"), "\"a\\\"b\\\\c%%d$$e\"");
  EXPECT_EQ(shell_words({"a", "", "b c", "$x"}), "a '' 'b c' '$x'");
}

TEST(SweepResult, RoundTripAndDamage) {
  Sample s;
  CellResult& r = s.rows[2].result;
  r.env = {{"A", "b"}};
  r.command = {"x", "\xff"};
  r.bench = {point(4, 2.5)};
  r.bench[0].power_w = 7;
  r.leftovers = {"port 1"};
  r.ready_seconds = 1.25;
  r.log_bytes = uint64_t{1} << 40;
  const std::string json = to_json(r);
  const std::optional<CellResult> back = result_of(json);
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(back->outcome, Outcome::kFailed);
  EXPECT_EQ(back->bench[0].power_w, 7);
  EXPECT_EQ(back->log_bytes, uint64_t{1} << 40);
  EXPECT_EQ(back->leftovers, r.leftovers);
  // Every field is in it.
  for (const char* key :
       {"outcome",      "name",   "stage",   "cause",     "sentence", "confidence",    "phase",   "engine",
        "evidence",     "remedy", "notes",   "leftovers", "end",      "ready_seconds", "seconds", "log_bytes",
        "log_left_out", "model",  "command", "env",       "answers",  "bench"})
    EXPECT_THAT(json, HasSubstr("\n  \"" + std::string(key) + "\": "));
  for (size_t cut = 0; cut + 2 < json.size(); cut += 7) EXPECT_FALSE(result_of(json.substr(0, cut))) << cut;
  EXPECT_FALSE(result_of("{\"outcome\": \"great\"}"));
  EXPECT_FALSE(result_of("[]"));
  EXPECT_FALSE(result_of("null"));
}

TEST(SweepResult, AFileIsWrittenWholeOrNotAtAll) {
  TemporaryFolder folder;
  const std::string path = (folder / "r").string();
  write_whole(path, "one");
  write_whole(path, "two");
  EXPECT_EQ(read_small(path), "two");
  EXPECT_EQ(read_small(path, 2), "");
  std::filesystem::create_directory(folder / "d");
  EXPECT_THROW(write_whole((folder / "d").string(), "x"), Error);  // and nothing is left beside it
  std::filesystem::remove(folder / "d");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SweepSkips, WordsThatTheDeviceRefuses) {
  const auto words = refused_words(
      R"({"words": [{"flag": "--moe-runner-backend", "word": "flashinfer_trtllm", "verdict": "WRONG_SM", "sentence": "no"},
                    {"flag": "--moe-runner-backend", "word": "cutlass", "verdict": "NOT_BUILT", "sentence": "not in mettle"},
                    {"flag": "--moe-runner-backend", "word": "marlin", "verdict": "OK"}, 7]})");
  ASSERT_EQ(words.size(), 1u);
  EXPECT_EQ(words[0].word, "flashinfer_trtllm");
  EXPECT_TRUE(refused_words("").empty());
  EXPECT_TRUE(refused_words("[]").empty());
  EXPECT_TRUE(refused_words("{\"words\": 3}").empty());
}

TEST(SweepSkips, RefusedWordsAndEarlierResults) {
  const Plan plan = parse_plan(R"(
device = "sm120"
[server]
command = ["serve"]
[[skip.rules]]
axis = "--attention-backend"
causes = ["WRONG_SM"]
[[cell]]
name = "a"
args = ["--moe-backend=FlashInfer-TRTLLM"]
[[cell]]
name = "b"
args = ["--attention-backend", "x"]
[[cell]]
name = "c"
args = ["--attention-backend", "x", "--other"]
[[cell]]
name = "d"
args = ["--attention-backend", "y"]
)",
                               "/plans/x.toml");
  const std::vector<RefusedWord> refused = {{"--moe-runner-backend", "flashinfer_trtllm", "WRONG_SM no code"}};
  const auto skip = find_skip(plan, plan.cells[0], refused, {});
  ASSERT_TRUE(skip);
  EXPECT_EQ(skip->cause, "WRONG_SM");
  EXPECT_THAT(skip->sentence, HasSubstr("cannot run on sm120"));
  EXPECT_FALSE(find_skip(plan, plan.cells[1], refused, {}));
  CellResult failed;
  failed.cause = "WRONG_SM";
  const std::vector<Done> done = {{&plan.cells[1], &failed}};
  EXPECT_THAT(find_skip(plan, plan.cells[2], refused, done)->sentence, HasSubstr("in cell \"b\""));
  EXPECT_FALSE(find_skip(plan, plan.cells[1], refused, done));  // not by itself
  EXPECT_FALSE(find_skip(plan, plan.cells[3], refused, done));
  for (const Outcome other : {Outcome::kSkipped, Outcome::kWorks}) {  // what was never tried proves nothing
    failed.outcome = other;
    EXPECT_FALSE(find_skip(plan, plan.cells[2], refused, done));
  }
  failed.outcome = Outcome::kFailed;
  failed.cause = "HOST_OOM";
  EXPECT_FALSE(find_skip(plan, plan.cells[2], refused, done));
}

}  // namespace
}  // namespace mettle::sweep

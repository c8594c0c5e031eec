#include "sweep/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "sweep/matrix.h"

namespace mettle::sweep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string refusal(const std::string& text) {
  try {
    parse_plan(text, "/plans/x.toml");
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalidRequest) << e.message;
    return e.message;
  }
  ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return "";
}

TEST(SweepPlan, AServerAloneIsOneCellWithTheDefaults) {
  const Plan plan = parse_plan("[server]\ncommand = [\"serve\", \"--port\", \"{port}\"]", "/plans/x.toml");
  ASSERT_EQ(plan.cells.size(), 1u);
  const Cell& cell = plan.cells[0];
  EXPECT_EQ(plan.name, "x");
  EXPECT_EQ(plan.folder, "/plans");
  EXPECT_EQ(cell.name, "x");
  EXPECT_EQ(cell.folder, "01-x");
  EXPECT_EQ(cell.server.ready, "/health");
  EXPECT_EQ(cell.server.port, 0);
  EXPECT_TRUE(plan.canary.prompts.empty());
  EXPECT_TRUE(plan.bench.concurrency.empty());
}

TEST(SweepPlan, EveryKeyIsRead) {
  const Plan plan = parse_plan(R"(
name = "night"
device = "sm120"
goal = "tpot"
log_mib = 3
[server]
command = ["serve"]
env = { A = "1", N = 7, T = true }
model = "m"
served_model = "s"
ready = "log: ^ready .*"
endpoint = "completions"
port = 30000
deadline_seconds = 1.5
silence_seconds = 2
stop_seconds = 3
[canary]
logprobs = false
reference = "http://other:1"
agreement = 0.25
seconds = 9
prompts = [{ prompt = "p", answer = "a", match = "contains", max_tokens = 5 }, { prompt = "q" }]
[bench]
concurrency = [8, 1]
requests = 4
input_words = 5
output_tokens = 6
seconds = 7
prompts = ["one"]
[skip]
refused = false
[[skip.rules]]
axis = "--x"
causes = ["WRONG_SM"]
)",
                               "/plans/x.toml");
  const ServerPlan& s = plan.cells[0].server;
  EXPECT_EQ(plan.name, "night");
  EXPECT_EQ(plan.device, "sm120");
  EXPECT_EQ(plan.goal, Goal::kTpot);
  EXPECT_EQ(plan.log_bytes, 3u << 20);
  EXPECT_THAT(s.env, ElementsAre(Pair("A", "1"), Pair("N", "7"), Pair("T", "true")));
  EXPECT_EQ(s.model + s.served_model + s.endpoint, "mscompletions");
  EXPECT_EQ(ready_pattern(s), "^ready .*");
  EXPECT_EQ(s.port, 30000);
  EXPECT_EQ(s.deadline_seconds + s.silence_seconds + s.stop_seconds, 6.5);
  EXPECT_FALSE(plan.canary.logprobs);
  EXPECT_EQ(plan.canary.reference, "http://other:1");
  EXPECT_EQ(plan.canary.agreement, 0.25);
  EXPECT_EQ(plan.canary.seconds, 9);
  ASSERT_EQ(plan.canary.prompts.size(), 2u);
  EXPECT_EQ(plan.canary.prompts[0].answer, "a");
  EXPECT_EQ(plan.canary.prompts[0].match, Match::kContains);
  EXPECT_EQ(plan.canary.prompts[0].max_tokens, 5);
  EXPECT_EQ(plan.canary.prompts[1].match, Match::kExact);
  EXPECT_THAT(plan.bench.concurrency, ElementsAre(1, 8));
  EXPECT_EQ(plan.bench.requests * 1000 + plan.bench.input_words * 100 + plan.bench.output_tokens * 10, 4560);
  EXPECT_EQ(plan.bench.seconds, 7);
  EXPECT_THAT(plan.bench.prompts, ElementsAre("one"));
  EXPECT_FALSE(plan.skip_refused);
  ASSERT_EQ(plan.skips.size(), 1u);
  EXPECT_EQ(plan.skips[0].axis, "--x");
  EXPECT_THAT(plan.skips[0].causes, ElementsAre("WRONG_SM"));
}

TEST(SweepPlan, TheMatrixIsTheProductAndCellsComeFirst) {
  const Plan plan = parse_plan(R"(
[server]
command = ["serve"]
env = { A = "0" }
[matrix]
"--moe" = ["x", "y"]
"--eager" = [true, false]
"env.A" = [1, 2]
[[cell]]
name = "by hand"
args = ["--moe", "z"]
)",
                               "/plans/x.toml");
  ASSERT_EQ(plan.cells.size(), 9u);
  EXPECT_EQ(plan.cells[0].name, "by hand");
  EXPECT_THAT(plan.cells[0].server.command, ElementsAre("serve", "--moe", "z"));
  std::set<std::string> names;
  bool seen = false;
  for (const Cell& cell : plan.cells) {
    names.insert(cell.name);
    if (value_of(cell, "--moe") != "y" || value_of(cell, "--eager") != "true" || value_of(cell, "env.A") != "2")
      continue;
    seen = true;
    EXPECT_THAT(cell.server.env, ElementsAre(Pair("A", "2")));
    EXPECT_EQ(cell.server.command.size(), 4u);
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(names.size(), 9u);
  // false: without the flag
  EXPECT_EQ(std::count_if(
                plan.cells.begin() + 1, plan.cells.end(),
                [](const Cell& cell) { return cell.server.command.size() == 3 && value_of(cell, "--eager").empty(); }),
            4);
}

TEST(SweepPlan, FoldersOfCellsArePlainWords) {
  const Plan plan = parse_plan(
      "[server]\ncommand = [\"x\"]\n[[cell]]\nname = \"Marlin, MoE/../x  (2)\"\n[[cell]]\nname = \"\xC3\xA9..\"\n"
      "[[cell]]\nname = \"" +
          std::string(90, 'A') + "\"",
      "/plans/x.toml");
  EXPECT_EQ(plan.cells[0].folder, "01-marlin-moe-..-x-2");
  EXPECT_EQ(plan.cells[1].folder, "02-cell");
  EXPECT_EQ(plan.cells[2].folder, "03-" + std::string(48, 'a'));
}

TEST(SweepPlan, ValuesOfAFlagAreFoundInEveryForm) {
  Cell cell;
  cell.server.command = {"serve", "--a", "1", "--b=2", "--c", "--d", "--a", "3"};
  cell.server.env = {{"E", "4"}};
  EXPECT_EQ(value_of(cell, "--a"), "3");
  EXPECT_EQ(value_of(cell, "--b"), "2");
  EXPECT_EQ(value_of(cell, "--c"), "true");
  EXPECT_EQ(value_of(cell, "--e"), "");
  EXPECT_EQ(value_of(cell, "env.E"), "4");
  EXPECT_EQ(value_of(cell, "env.F"), "");
}

TEST(SweepPlan, PlaceholdersAreReplacedOnceAndNothingElseIs) {
  const Plan plan = parse_plan(
      "[server]\nmodel = \"{out}\"\ncommand = [\"{mettle}\", \"{port}{port}\", \"{model}\", \"{other} $HOME\"]\n"
      "env = { P = \"{out}/x\" }",
      "/plans/x.toml");
  const Places places{81, "/cells/1", "/bin/{port}"};
  EXPECT_THAT(words_of(plan, plan.server, places), ElementsAre("/bin/{port}", "8181", "{out}", "{other} $HOME"));
  EXPECT_THAT(environment_of(plan, plan.server, places), ElementsAre(Pair("P", "/cells/1/x")));
}

TEST(SweepPlan, UnknownKeysListTheValidOnes) {
  EXPECT_THAT(refusal("[server]\ncommand = [\"x\"]\ndeadline = 3"),
              testing::AllOf(HasSubstr("x.toml:3: server.deadline: no such key"), HasSubstr("deadline_seconds")));
  EXPECT_THAT(refusal("servers = 1\n[server]\ncommand = [\"x\"]"), HasSubstr("servers: no such key; a plan has name"));
  EXPECT_THAT(refusal("[server]\ncommand = [\"x\"]\n[[cell]]\nname = \"a\"\nargz = []"), HasSubstr("cell 1.argz"));
  EXPECT_THAT(refusal("[server]\ncommand = [\"x\"]\n[canary]\nprompts = [{ prompt = \"a\", anser = \"b\" }]"),
              HasSubstr("canary.prompts.anser"));
  const std::string head = "[server]\ncommand = [\"x\"]\n";
  EXPECT_THAT(refusal(head + "[canary]\nprompt = []"), HasSubstr("canary.prompt: no such key"));
  EXPECT_THAT(refusal(head + "[bench]\nrate = 1"), HasSubstr("bench.rate: no such key"));
  EXPECT_THAT(refusal(head + "[skip]\nrule = []"), HasSubstr("skip.rule: no such key"));
  EXPECT_THAT(refusal(head + "[[skip.rules]]\naxis = \"--a\"\ncauses = [\"X\"]\nwhy = \"\""),
              HasSubstr("skip.rules.why: no such key"));
}

TEST(SweepPlan, BadValuesAreToldWithTheirPlaceAndValue) {
  const std::string head = "[server]\ncommand = [\"x\"]\n";
  EXPECT_THAT(refusal(head + "port = 70000"), testing::AllOf(HasSubstr(":3: server.port"), HasSubstr("70000")));
  EXPECT_THAT(refusal(head + "port = -1"), HasSubstr("must be a whole number from 0 to 65535, is -1"));
  EXPECT_THAT(refusal(head + "[bench]\nrequests = 0"), HasSubstr("must be a whole number from 1 to 100000, is 0"));
  EXPECT_THAT(refusal(head + "port = \"1\""), HasSubstr("must be a whole number"));
  EXPECT_THAT(refusal(head + "port = 1.5"), HasSubstr("1.5"));
  EXPECT_THAT(refusal(head + "deadline_seconds = 0"), HasSubstr("must be a number from 0.1"));
  EXPECT_THAT(refusal(head + "deadline_seconds = nan"), HasSubstr("must be a number"));
  EXPECT_THAT(refusal(head + "deadline_seconds = inf"), HasSubstr("must be a number"));
  EXPECT_THAT(refusal(head + "ready = \"health\""), HasSubstr("must be a path"));
  EXPECT_THAT(refusal(head + "ready = \"log: (\""), HasSubstr("must be a regular expression"));
  EXPECT_THAT(refusal(head + "endpoint = \"v1\""), HasSubstr("chat or completions"));
  EXPECT_THAT(refusal(head + "env = { \"A=B\" = \"1\" }"), HasSubstr("\"A=B\" is no name of a variable"));
  EXPECT_THAT(refusal(head + "env = { A = [1] }"), HasSubstr("must be a text, a number, true or false"));
  EXPECT_THAT(refusal(head + "[matrix]\nmoe = [1]"), HasSubstr("must be a flag"));
  EXPECT_THAT(refusal(head + "[matrix]\n\"--moe\" = []"), HasSubstr("1 to 64 values, is a list of 0"));
  EXPECT_THAT(refusal(head + "deadline_seconds = 9223372036854775807"), HasSubstr("is 9223372036854775807"));
  EXPECT_THAT(refusal(head + "[matrix]\n\"--moe\" = [\"a\", \"a\"]"), HasSubstr("each value once"));
  EXPECT_THAT(refusal(head + "[[cell]]\nname = \"a\"\n[[cell]]\nname = \"a\""),
              HasSubstr("two cells are called \"a\""));
  EXPECT_THAT(refusal(head + "[[cell]]\nname = \"a\\nb\""), HasSubstr("control byte"));
  EXPECT_THAT(refusal(head + "[bench]\nconcurrency = [0]"), HasSubstr("whole number from 1"));
  EXPECT_THAT(refusal(head + "[bench]\nconcurrency = [2, 2]"), HasSubstr("each number once"));
  EXPECT_THAT(refusal(head + "[canary]\nreference = \"file:///etc\""), HasSubstr("must be a URL"));
  EXPECT_THAT(refusal("device = \"gpu\"\n" + head), HasSubstr("device"));
  EXPECT_THAT(refusal("goal = \"speed\"\n" + head), HasSubstr("throughput, tpot or ttft"));
  EXPECT_THAT(refusal("name = \"../a\"\n" + head), HasSubstr("no slash"));
  EXPECT_THAT(refusal("[server]\ncommand = \"serve --port 1\""), HasSubstr("must be a list of texts"));
  EXPECT_THAT(refusal("[server]\ncommand = []"), HasSubstr("1 to 256 entries"));
  EXPECT_THAT(refusal("[server]\ncommand = [\"\"]"), HasSubstr("must begin with a program"));
  EXPECT_THAT(refusal(""), HasSubstr("server.command: must be given"));
  EXPECT_THAT(refusal("[[cell]]\nname = \"a\""), HasSubstr("cell 1.command"));
}

TEST(SweepPlan, HostileTextIsBounded) {
  EXPECT_THAT(refusal(std::string(2 << 20, '#')), HasSubstr("at most 1048576 bytes"));
  EXPECT_THAT(refusal("a = " + std::string(200'000, '[')), HasSubstr("no TOML"));
  EXPECT_THAT(refusal("[server]\ncommand = [\"x\\u0000y\"]"), HasSubstr("zero byte"));
  EXPECT_THAT(refusal("[server]\ncommand = [\"" + std::string(9000, 'x') + "\"]"), HasSubstr("at most 8192 bytes"));
  EXPECT_THAT(refusal("\xff\xfe"), HasSubstr("no TOML"));
  EXPECT_THAT(refusal("[server]\ncommand = \xC3\xA9"), HasSubstr("no TOML"));
  EXPECT_THAT(refusal("[server]\ncommand =\x05"), HasSubstr("x.toml:2: no TOML: control byte 0x05"));
  std::string matrix = "[server]\ncommand = [\"x\"]\n[matrix]\n";
  for (const char axis : {'a', 'b', 'c'}) {
    matrix += std::string("\"--") + axis + "\" = [";
    for (int i = 0; i < 60; ++i) matrix += std::to_string(i) + ",";
    matrix += "]\n";
  }
  EXPECT_THAT(refusal(matrix), HasSubstr("makes 3600 cells, at most 500 may be"));  // before they are made
}

TEST(SweepPlan, FilesThatAreNoPlan) {
  EXPECT_THROW(read_plan("/no/such/plan.toml"), Error);
  EXPECT_THROW(read_plan("/tmp"), Error);
}

TEST(SweepPlan, TheIdentityChangesWithWhatDecidesAResult) {
  const std::string text =
      "[server]\ncommand = [\"x\"]\n[[cell]]\nname = \"a\"\n[[cell]]\nname = \"b\"\nargs = [\"c\"]\n";
  const Plan plan = parse_plan(text, "/plans/x.toml"), again = parse_plan(text, "/plans/x.toml");
  const std::string same = identity(plan, plan.cells[0]);
  EXPECT_EQ(same, identity(again, again.cells[0]));
  EXPECT_NE(same, identity(plan, plan.cells[1]));
  for (const char* change : {
           "env = { A = \"1\" }",
           "model = \"m\"",
           "served_model = \"s\"",
           "ready = \"/v1/models\"",
           "endpoint = \"completions\"",
           "port = 8000",
           "deadline_seconds = 1",
           "silence_seconds = 1",
           "stop_seconds = 1",
       }) {
    const Plan changed = parse_plan(
        "[server]\ncommand = [\"x\"]\n" + std::string(change) + "\n[[cell]]\nname = \"a\"\n", "/plans/x.toml");
    EXPECT_NE(same, identity(changed, changed.cells[0])) << change;
  }
  for (const char* change : {
           "[canary]\nprompts = [{ prompt = \"p\" }]",
           "[canary]\nlogprobs = false",
           "[canary]\nreference = \"http://other\"",
           "[canary]\nagreement = 0.25",
           "[canary]\nseconds = 9",
           "[bench]\nconcurrency = [1]",
           "[bench]\nrequests = 5",
           "[bench]\ninput_words = 5",
           "[bench]\noutput_tokens = 5",
           "[bench]\nprompts = [\"p\"]",
           "[bench]\nseconds = 5",
       }) {
    const Plan changed = parse_plan(text + change, "/plans/x.toml");
    EXPECT_NE(same, identity(changed, changed.cells[0])) << change;
  }
  const Plan device = parse_plan("device = \"sm120\"\n" + text, "/plans/x.toml");
  EXPECT_NE(same, identity(device, device.cells[0]));
  // How each answer is compared, too.
  std::set<std::string> all;
  for (const char* prompt : {"", ", answer = \"a\"", ", answer = \"b\"", ", answer = \"a\", match = \"contains\"",
                             ", answer = \"a\", max_tokens = 5"}) {
    const Plan changed =
        parse_plan(text + "[canary]\nprompts = [{ prompt = \"p\"" + std::string(prompt) + " }]", "/plans/x.toml");
    all.insert(identity(changed, changed.cells[0]));
  }
  EXPECT_EQ(all.size(), 5u);
}

TEST(SweepPlan, TheExampleIsAPlan) {
  const Plan plan = read_plan(std::string(METTLE_SOURCE_DIR) + "/examples/night.toml");
  EXPECT_EQ(plan.cells.size(), 8u);
  EXPECT_EQ(plan.device, "sm120");
}

}  // namespace
}  // namespace mettle::sweep

// The page of proofs: what it shows, and that nothing in it comes from outside or gets out of its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "prove/report.h"

namespace mettle {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kHostile = "<script>alert('1')</script>\"&\x1b[31m\xE2\x80\xAE\xFF";

size_t times(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

ProofEntry entry(const std::string& op, const std::string& backend, const std::string& tactic, double error) {
  ProofEntry e{.op = op, .backend = backend, .tactic = tactic, .problem = op + " h64"};
  e.max_error = error;
  e.bound = 10;
  e.comparisons = 1000;
  e.cases = 7;
  e.us = {1, 2, 3, 0, 0, 0};
  return e;
}

ReportPage page_of(std::vector<ProofEntry> entries) {
  ReportPage page;
  page.report = {"a device", "abc123", std::move(entries), {}};
  for (const ProofEntry& e : page.report.entries) {
    const bool known = std::any_of(page.choices.begin(), page.choices.end(),
                                   [&](const ServingChoice& c) { return c.problem == e.problem; });
    if (known || !e.verdict.ok()) continue;
    ServingChoice choice{.problem = e.problem};
    choice.backend.fill(e.backend);
    choice.tactic.fill(e.tactic);
    page.choices.push_back(choice);
  }
  page.model = "a model";
  return page;
}

TEST(ReportHtml, ShowsVerdictsErrorsAndRemedies) {
  std::vector<ProofEntry> entries = {entry("moe", "good", "fast", 0.5), entry("moe", "good", "slow", 2.5),
                                     entry("moe", "bad", "only", 3e4), entry("linear", "missing", "", 0)};
  entries[2].verdict = refuse(VerdictCode::kWrongOutput, "0.5", "[0.1, 0.2]", "rows1: y[row 0, column 4] is 0.5");
  entries[3].verdict = refuse(VerdictCode::kIsaMissing, "avx2", "avx512bf16");
  entries[3].comparisons = 0;
  const std::string html = report_html(page_of(entries));
  for (const char* part :
       {"1 tactic failed and does not serve.", "1 problem has no proved backend.", "2 of 3 proved", "WRONG_OUTPUT",
        "rows1: y[row 0, column 4] is 0.5", "[0.1, 0.2]", "another backend serves", "ISA_MISSING", "avx512bf16",
        "another tactic serves", "a device", "abc123", "nothing proved", "<b>good</b>"})
    EXPECT_THAT(html, HasSubstr(part));
  // The dot of the wrong tactic lies beyond the line, which stands at 72 %; the others before it.
  std::vector<double> good, bad;
  const std::regex dot("class=\"dot (ok|failed)\" cx=\"([0-9.]+)%\"");
  for (std::sregex_iterator i(html.begin(), html.end(), dot), end; i != end; ++i)
    ((*i)[1] == "ok" ? good : bad).push_back(std::stod((*i)[2]));
  ASSERT_EQ(good.size(), 2u);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_LT(good[0], good[1]);
  EXPECT_LT(good[1], 72);
  EXPECT_GT(bad[0], 72);
  EXPECT_LT(bad[0], 100);
  // Cells: only a proved tactic shows times, only what serves is filled.
  EXPECT_EQ(times(html, "class=\"us chosen\""), kRowBuckets.size());
  EXPECT_EQ(times(html, "3.0\u202Fµs"), 2u);
}

TEST(ReportHtml, SaysWhenAllIsWell) {
  const std::string html = report_html(page_of({entry("moe", "good", "fast", 0.5)}));
  EXPECT_THAT(html, HasSubstr("1 of 1 proved"));
  EXPECT_THAT(html, HasSubstr("Nothing failed, and nothing was refused."));
  EXPECT_THAT(html, HasSubstr("<header class=\"well\">"));
  EXPECT_THAT(report_html({}), HasSubstr("Nothing was to be proved."));
  // Not proved is not well, whatever it is called.
  std::vector<ProofEntry> open = {entry("moe", "good", "fast", 0.5)};
  open[0].verdict = refuse(VerdictCode::kUnproved, "", "");
  EXPECT_THAT(report_html(page_of(open)), HasSubstr("<header class=\"unwell\">"));
}

TEST(ReportHtml, NothingGetsOutOfItsPlace) {
  ProofEntry e = entry(kHostile, kHostile, kHostile, 0.5), f = entry("moe", "b", "t", std::nan(""));
  e.problem = f.problem = kHostile;
  f.verdict = refuse(VerdictCode::kFault, kHostile, kHostile, kHostile, kHostile);
  ReportPage page = page_of({e, f});
  page.model = page.architecture = page.program = page.made = page.report.build = page.report.device = kHostile;
  page.report.where.driver = page.report.where.name = kHostile;
  const std::string html = report_html(page);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("\x1b")));
  EXPECT_THAT(html, Not(HasSubstr("\xE2\x80\xAE")));
  EXPECT_THAT(html, Not(HasSubstr("\xFF")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;\uFFFD[31m\uFFFD\uFFFD"));
  EXPECT_THAT(html, Not(HasSubstr("http:")));
  EXPECT_THAT(html, Not(HasSubstr("https:")));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* tag : {"section", "article", "table", "tr", "td", "svg", "figure", "span", "div", "p"})
    EXPECT_EQ(times(html, std::string("<") + tag + ">") + times(html, std::string("<") + tag + " "),
              times(html, std::string("</") + tag + ">"))
        << tag;
  EXPECT_EQ(html, report_html(page));
}

TEST(ReportHtml, HoldsTimesAgainstTheCeiling) {
  const LinearProblem problem{.in = 1024, .out = 1024};
  ProofEntry e = entry("linear", "cpu_gemm", "avx2", 0.5);
  e.problem = problem.text();
  ReportPage page = page_of({e});
  page.problems = {problem};
  EXPECT_THAT(report_html(page), Not(HasSubstr("nearest ceiling")));
  page.ceiling = Ceiling{.reads = {{1 << 20, 100}, {1 << 28, 20}}, .math = {{"fma_f32", 50}}};
  const std::string html = report_html(page);
  for (const char* part : {"reads 20 GB/s from memory", "fma_f32 50 GFLOP/s", "what serves, GB/s", "nearest ceiling"})
    EXPECT_THAT(html, HasSubstr(part));
}

// Columns of row buckets: as many as there are, whatever the style was written for.
TEST(ReportHtml, HasAColumnForEveryRowBucket) {
  const std::string html = report_html(page_of({entry("linear", "cpu_gemm", "avx2", 0.5)}));
  EXPECT_THAT(html, HasSubstr("<main style=\"--buckets:" + std::to_string(kRowBuckets.size()) + "\">"));
  EXPECT_THAT(html, HasSubstr("15rem repeat(var(--buckets)"));
  for (char digit = '0'; digit <= '9'; ++digit) EXPECT_THAT(html, Not(HasSubstr(std::string("repeat(") + digit)));
}

TEST(ReportChoices, AreThoseOfServing) {
  const LinearProblem problem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4};
  ProofReport report;
  report.where = this_cpu();
  for (const Backend<LinearOp>* b : backends_of<LinearOp>()) {
    if (b->kind != report.where.kind) continue;
    const std::vector<Tactic> tactics = b->tactics(problem, report.where);
    for (size_t t = 0; t < tactics.size(); ++t) {
      ProofEntry e = entry("linear", std::string(b->name), tactics[t].name, 1);
      e.problem = problem.text();
      // Another backend from bucket 3 on, another tactic in every second bucket.
      for (size_t i = 0; i < kRowBuckets.size(); ++i)
        e.us[i] = ((b->name == "cpu_gemm") == (i >= 3) ? 1 : 2) + (t == i % 2 ? 0 : 0.5);
      report.entries.push_back(e);
    }
  }
  const std::vector<AnyProblem> problems = {problem};
  const std::vector<ServingChoice> choices = serving_choices(report, problems);
  ASSERT_EQ(choices.size(), 1u);
  const Choices<LinearOp> serving = choose(report, problem);
  for (size_t i = 0; i < kRowBuckets.size(); ++i) {
    EXPECT_EQ(choices[0].backend[i], serving.by_bucket[i].backend->name);
    EXPECT_EQ(choices[0].tactic[i], serving.by_bucket[i].tactic.name);
  }
  EXPECT_NE(choices[0].backend[0], choices[0].backend[5]);
  EXPECT_TRUE(choices[0].tactic[0] != choices[0].tactic[1] || this_cpu().isas.size() == 1);
  for (ProofEntry& e : report.entries) e.verdict = refuse(VerdictCode::kFault, "", "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(serving_choices(report, problems)[0].backend[0], "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace mettle

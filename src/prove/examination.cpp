#include "prove/examination.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mettle {
namespace {

constexpr double kWorstReported = 1e30;  // infinity has no JSON

}  // namespace

void Examination::begin(std::string kind) {
  kind_ = std::move(kind);
  ++entry_.cases;
}

void Examination::fail_with(Verdict verdict) const {
  verdict.sentence = fmt::format("{}: {}", kind_, verdict.sentence);
  throw ProofFailure{std::move(verdict)};
}

void Examination::record(const judge::ElementResult& r, const std::string& what, const char* rule, uint64_t compared,
                         std::span<const int> row_names) {
  entry_.comparisons += compared;
  entry_.max_error = std::max(entry_.max_error, std::min(r.worst, kWorstReported));
  if (r.failures == 0) return;
  const auto row = [&](int64_t i) { return row_names.empty() ? i : int64_t{row_names[static_cast<size_t>(i)]}; };
  const std::string interval =
      r.at.low == r.at.high ? fmt::format("{:.9g}", r.at.low) : fmt::format("[{:.9g}, {:.9g}]", r.at.low, r.at.high);
  fail_with(
      refuse(VerdictCode::kWrongOutput, fmt::format("{:.9g}", r.at.got), interval,
             fmt::format("{}[row {}, column {}] is {:.9g}, must be {}{}; {} of {} wrong, in rows {}..{}, columns "
                         "{}..{} (rule: {})",
                         what, row(r.at.row), r.at.col, r.at.got, r.at.low == r.at.high ? "" : "in ", interval,
                         r.failures, compared, row(r.row_first), row(r.row_last), r.col_first, r.col_last, rule)));
}

void Examination::judge_elements(const std::string& what, const Expected& expected, std::span<const float> got,
                                 std::span<const int> row_names) {
  const bool nothing = std::none_of(got.begin(), got.end(), [](float x) { return x != 0; });
  const judge::ElementResult result = judge::element(expected, got);
  if (nothing && result.failures > 0)  // where zero is within rounding, nothing is wrong with it
    fail_with(refuse(VerdictCode::kZeroOutput, "0", "not zero",
                     fmt::format("{}: all {} elements are zero", what, got.size())));
  record(result, what, "element", got.size(), row_names);
}

void Examination::judge_exact(const std::string& what, const Expected& expected, std::span<const float> got,
                              std::span<const int> row_names) {
  record(judge::exact(expected, got), what, "exact", got.size(), row_names);
}

void Examination::collect(const std::string& what, const Expected& expected, std::span<const float> got) {
  groups_[what].add(expected, got);
}

void Examination::judge_selection(std::span<const double> scores, std::span<const double> sigma, int64_t rows,
                                  int64_t n, std::span<const int32_t> ids, int64_t k, std::span<const int> row_names) {
  const judge::SelectionResult r = judge::selection(scores, sigma, rows, n, ids, k);
  entry_.comparisons += static_cast<uint64_t>(rows * k);
  entry_.max_error = std::max(entry_.max_error, std::min(r.worst, kWorstReported));
  if (r.worst <= judge::kElement) return;
  std::string chosen;
  for (int64_t j = 0; j < k; ++j)
    chosen += fmt::format("{}{}", j > 0 ? " " : "", ids[static_cast<size_t>(r.row * k + j)]);
  const int64_t row = row_names.empty() ? r.row : int64_t{row_names[static_cast<size_t>(r.row)]};
  fail_with(refuse(VerdictCode::kWrongSelection, chosen, fmt::format("the best {} of {}", k, n),
                   fmt::format("row {} selected {}: {}", row, chosen, r.what)));
}

void Examination::judge_same(VerdictCode code, const std::string& what, const std::vector<uint8_t>& first,
                             const std::vector<uint8_t>& second, int64_t row_bytes, int64_t row_step) const {
  const auto rows = static_cast<int64_t>(first.size()) / std::max<int64_t>(row_bytes, 1);
  for (int64_t row = 0; row < rows; row += row_step) {
    const auto at = static_cast<size_t>(row * row_bytes), bytes = static_cast<size_t>(row_bytes);
    if (std::memcmp(first.data() + at, second.data() + at, bytes) == 0) continue;
    const auto begin = first.begin() + row * row_bytes;
    const auto [a, b] = std::mismatch(begin, begin + row_bytes, second.begin() + row * row_bytes);
    fail_with(refuse(code, "different bits", "the same bits",
                     fmt::format("{}[row {}] differs at byte {} of {}{}", what, row, a - begin, row_bytes,
                                 code == VerdictCode::kRowDependent ? " when its neighbours hold NaN"
                                                                    : " between two runs on the same input")));
  }
}

void Examination::judge_twins(const std::string& what, std::span<const uint8_t> all, int64_t row_bytes, int64_t row,
                              int64_t twin) const {
  const auto bytes = static_cast<size_t>(row_bytes);
  const std::span<const uint8_t> a = all.subspan(static_cast<size_t>(row) * bytes, bytes),
                                 b = all.subspan(static_cast<size_t>(twin) * bytes, bytes);
  if (std::memcmp(a.data(), b.data(), bytes) == 0) return;
  fail_with(refuse(VerdictCode::kRowDependent, "different bits", "the same bits",
                   fmt::format("{}[row {}] differs at byte {} of {} from row {}, which has the same inputs", what, row,
                               std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin(), row_bytes, twin)));
}

void Examination::finish() {
  for (const auto& [what, groups] : groups_) {
    const judge::Groups::Worst worst = groups.worst();
    entry_.group_error = std::max(entry_.group_error, std::min(worst.ratio, kWorstReported));
    if (worst.ratio <= 1) continue;
    begin("all launches");
    fail_with(refuse(VerdictCode::kWrongOutput, fmt::format("{:.3g} of the limit", worst.ratio), "at most 1",
                     fmt::format("{}: {} is {:.3g} times what rounding explains, over {} elements (rule: groups)", what,
                                 worst.group, worst.ratio, groups.elements())));
  }
  if (entry_.comparisons == 0)
    throw ProofFailure{refuse(VerdictCode::kUnproved, "0 comparisons", "at least 1",
                              "nothing was compared: not a proof", "report it: a case list is empty")};
}

}  // namespace mettle

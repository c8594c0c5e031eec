// Row counts of cases: around every border where kernels change their path.
#pragma once
#include <vector>

namespace mettle {

// The most telling counts first; taken while their sum stays within `budget` rows (one row always is).
std::vector<int> case_row_counts(int budget);
// Rows to judge when not all of `rows` can be: first, last, both sides of every tile border, the rest spread evenly.
// Ascending, at most `most` of them (at least two).
std::vector<int> case_sample_rows(int rows, int most);

}  // namespace mettle

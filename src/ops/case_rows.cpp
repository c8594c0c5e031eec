#include "ops/case_rows.h"

#include <algorithm>
#include <set>

namespace mettle {

std::vector<int> case_row_counts(int budget) {
  constexpr int kCounts[] = {1, 3, 17, 65, 2, 16, 33, 7, 15, 8, 129, 32, 31, 64, 63, 128, 127, 512};
  std::vector<int> out;
  int sum = 0;
  for (const int n : kCounts) {
    if (!out.empty() && sum + n > budget) continue;
    out.push_back(n);
    sum += n;
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int> case_sample_rows(int rows, int most) {
  std::set<int> out;
  most = std::max(most, 2);
  const auto take = [&](int r) {
    if (r >= 0 && r < rows && static_cast<int>(out.size()) < most) out.insert(r);
  };
  if (rows <= most) {
    for (int r = 0; r < rows; ++r) out.insert(r);
    return {out.begin(), out.end()};
  }
  take(0);
  take(rows - 1);
  for (const int tile : {16, 8, 64, 4})
    for (int r = rows / tile * tile; r > 0 && r >= rows / tile * tile - 4 * tile; r -= tile) {
      take(r);
      take(r - 1);
    }
  for (int i = 1; static_cast<int>(out.size()) < most; ++i) {
    const int before = static_cast<int>(out.size());
    for (int r = rows / (i + 1); r < rows; r += std::max(rows / (i + 1), 1)) take(r);
    if (static_cast<int>(out.size()) == before && i > rows) break;
  }
  return {out.begin(), out.end()};
}

}  // namespace mettle

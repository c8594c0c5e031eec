#include "prove/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace mettle {

TrialBatch::TrialBatch(const TrialContext& context, const Batch& batch) : batch_(batch) {
  if (context.gpu == nullptr) return;
  BatchStage::Limits limits{.rows = batch.rows, .sequences = static_cast<int>(batch.sequences.size()), .logit_rows = 1};
  for (const BatchSequence& s : batch.sequences)
    limits.blocks += (s.ctx_len + s.q_len + batch.block_size - 1) / batch.block_size;
  place_ = host_place();
  stage_ = std::make_unique<BatchStage>(limits, *place_);
  batch_.device = &stage_->fill(batch, nullptr, {});
  stage_->upload(nullptr);
}

GuardedWorkspace::GuardedWorkspace(size_t bytes) : body_("workspace", {static_cast<int64_t>(bytes)}, DType::kU8) {}

Workspace GuardedWorkspace::arm() {
  body_.arm();
  std::memset(body_.body(), 0xFF, body_.bytes());  // NaN in every float format
  return {body_.body(), body_.bytes()};
}

Expected expect_rows(ThreadTeam& team, std::span<const int> rows,
                     const std::function<Expected(std::span<const int>)>& of) {
  const auto n = static_cast<int64_t>(rows.size());
  const int parts = static_cast<int>(std::min<int64_t>(team.members(), n));
  if (parts <= 1) return of(rows);
  std::vector<Expected> of_part(static_cast<size_t>(parts));
  team.run([&](int member) {
    if (member >= parts) return;
    const Span s = share_of(n, member, parts);
    of_part[static_cast<size_t>(member)] =
        of(rows.subspan(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin)));
  });
  Expected all = std::move(of_part.front());
  for (size_t i = 1; i < of_part.size(); ++i) {
    Expected& e = of_part[i];
    all.rows += e.rows;
    all.value.insert(all.value.end(), e.value.begin(), e.value.end());
    all.sys.insert(all.sys.end(), e.sys.begin(), e.sys.end());
    all.rnd.insert(all.rnd.end(), e.rnd.begin(), e.rnd.end());
    all.jump.insert(all.jump.end(), e.jump.begin(), e.jump.end());
  }
  return all;
}

RestOfRows rest_of_rows(int all, std::span<const int> judged_rows, const Expected& judged,
                        std::span<const float> reference) {
  RestOfRows rest;
  for (int r = 0; r < all; ++r)
    if (!std::binary_search(judged_rows.begin(), judged_rows.end(), r)) rest.rows.push_back(r);
  rest.expected = Expected(static_cast<int64_t>(rest.rows.size()), judged.cols, judged.dtype);
  const auto cols = static_cast<size_t>(judged.cols);
  std::vector<double> sys(cols), rnd(cols);
  double jump = 0;
  for (size_t i = 0; i < judged.value.size(); ++i) {
    sys[i % cols] = std::max(sys[i % cols], 2 * judged.sys[i]);
    rnd[i % cols] = std::max(rnd[i % cols], 2 * judged.rnd[i]);
    jump = std::max(jump, 2 * judged.jump[i]);
  }
  const std::vector<float> value = pick_rows(reference, judged.cols, rest.rows);
  for (size_t i = 0; i < value.size(); ++i) {
    rest.expected.value[i] = value[i];
    rest.expected.sys[i] = sys[i % cols];
    rest.expected.rnd[i] = rnd[i % cols];
    rest.expected.jump[i] = jump;
  }
  return rest;
}

std::vector<float> pick_rows(std::span<const float> values, int64_t cols, std::span<const int> rows) {
  std::vector<float> out;
  out.reserve(rows.size() * static_cast<size_t>(cols));
  for (const int r : rows) out.insert(out.end(), values.begin() + r * cols, values.begin() + (r + 1) * cols);
  return out;
}

Verdict prove_packing(const std::string& name, const PackedMatrix& packed, const RawSegments& raw) {
  int64_t row = 0;
  std::vector<double> wanted(static_cast<size_t>(cols_of(raw)));
  for (const RawMatrix& m : raw) {
    for (int64_t r = 0; r < m.rows; ++r, ++row) {
      if (row >= packed.rows) continue;  // too many rows are told below
      m.read_row(r, wanted.data());
      const auto row_scale = static_cast<double>(packed.row_scale[packed_row(packed, row)]);
      for (int64_t k = 0; k < m.cols; ++k) {
        // Exact in float64; where the layout holds a float32 product of two scales, that product is meant.
        const double have = static_cast<double>(element(packed, row, k)) * row_scale;
        const double want = wanted[static_cast<size_t>(k)];
        const bool two_scales = m.format == WeightFormat::kFp8Block || m.row_scale != nullptr;
        if (have == want || (two_scales && static_cast<float>(have) == static_cast<float>(want))) continue;
        return refuse(VerdictCode::kWrongOutput, fmt::format("{:.9g}", have), fmt::format("{:.9g}", want),
                      fmt::format("packing: {}[{}, {}] reads back as {:.9g}, the checkpoint holds {:.9g}", name, row, k,
                                  have, want));
      }
    }
  }
  if (row != packed.rows)
    return refuse(VerdictCode::kWrongOutput, fmt::format("{} rows", packed.rows), fmt::format("{} rows", row),
                  fmt::format("packing: {} has {} rows, the checkpoint {}", name, packed.rows, row));
  return {};
}

std::vector<int> iota_rows(int rows) {
  std::vector<int> out(static_cast<size_t>(rows));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace mettle

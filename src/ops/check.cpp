#include "ops/check.h"

#include <fmt/format.h>

#include "base/error.h"

namespace mettle {

void check_matrix(std::string_view name, const PackedMatrix& m, int64_t rows, int64_t cols, WeightFormat format) {
  if (m.layout == Layout::kNone || m.rows != rows || m.cols != cols || m.format != format)
    fail(Code::kInternal, fmt::format("{}: must be [{}, {}] {}, got [{}, {}] {} in layout {}", name, rows, cols,
                                      name_of(format), m.rows, m.cols, name_of(m.format), name_of(m.layout)));
}

void check_batch(const Batch& batch, bool needs_blocks, bool needs_state, int64_t slots) {
  int row = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const BatchSequence& s = batch.sequences[i];
    if (s.first_row != row || s.q_len < 1 || s.ctx_len < 0)
      fail(Code::kInternal,
           fmt::format("batch.sequences[{}]: must start at row {} with q_len >= 1 and ctx_len >= 0, got {}, {}, {}", i,
                       row, s.first_row, s.q_len, s.ctx_len));
    if (needs_blocks && s.block_table == nullptr)
      fail(Code::kInternal, fmt::format("batch.sequences[{}]: needs a block table", i));
    if (needs_state && (s.state_out < 0 || s.state_out >= slots || s.state_in < -1 || s.state_in >= slots ||
                        (s.state_in == -1 && s.ctx_len > 0)))
      fail(Code::kInternal, fmt::format("batch.sequences[{}]: state slots {} -> {} of {} do not fit ctx_len {}", i,
                                        s.state_in, s.state_out, slots, s.ctx_len));
    row += s.q_len;
  }
  if (row != batch.rows)
    fail(Code::kInternal, fmt::format("batch.rows: must be {}, the rows of its sequences, got {}", row, batch.rows));
}

}  // namespace mettle

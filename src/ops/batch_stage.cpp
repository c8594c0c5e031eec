#include "ops/batch_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/cuda/take_ids.h"

namespace mettle {
namespace {

constexpr int64_t kSequenceWords = sizeof(DeviceSequence) / sizeof(int32_t);

// Word offsets of the arrays; block tables last, so that a copy ends with what is used of them.
struct Offsets {
  int64_t row_sequence, row_position, sequence, logit_row, blocks;
  explicit Offsets(const BatchStage::Limits& l) {
    const auto padded = [](int64_t words) { return (words + 7) / 8 * 8; };
    row_sequence = padded(l.rows);
    row_position = row_sequence + padded(l.rows);
    sequence = row_position + padded(l.rows);
    logit_row = sequence + kSequenceWords * l.sequences;
    blocks = logit_row + padded(l.logit_rows);
  }
};

}  // namespace

BatchStage::BatchStage(const Limits& limits, Place& place) : limits_(limits), place_(place) {
  const Offsets at(limits);
  const auto bytes = static_cast<size_t>(at.blocks + limits.blocks) * sizeof(int32_t);
  for (int32_t*& image : images_) image = static_cast<int32_t*>(place.take_shared(bytes));
  device_ = static_cast<int32_t*>(place.take(bytes));
  batch_.ids = device_;
  batch_.row_sequence = device_ + at.row_sequence;
  batch_.row_position = device_ + at.row_position;
  batch_.sequence = reinterpret_cast<const DeviceSequence*>(device_ + at.sequence);
  batch_.logit_row = device_ + at.logit_row;
  batch_.blocks = device_ + at.blocks;
}

const DeviceBatch& BatchStage::fill(const Batch& batch, const int32_t* ids, std::span<const int32_t> logit_rows,
                                    const Padding& padding) {
  const Offsets at(limits_);
  const int sequences = static_cast<int>(batch.sequences.size()), wanted = static_cast<int>(logit_rows.size());
  batch_.rows = std::max(batch.rows, padding.rows);
  batch_.sequences = std::max(sequences, padding.sequences);
  batch_.logit_rows = std::max(wanted, padding.logit_rows);
  CHECK(batch_.rows <= limits_.rows && batch_.sequences <= limits_.sequences && batch_.logit_rows <= limits_.logit_rows,
        fmt::format("batch of {} rows, {} sequences, {} logit rows: the stage holds {}, {}, {}", batch_.rows,
                    batch_.sequences, batch_.logit_rows, limits_.rows, limits_.sequences, limits_.logit_rows));
  host_ = host_ == images_[0] ? images_[1] : images_[0];
  auto* sequence = reinterpret_cast<DeviceSequence*>(host_ + at.sequence);
  int32_t *row_sequence = host_ + at.row_sequence, *row_position = host_ + at.row_position;
  std::fill_n(host_, batch_.rows, 0);
  std::fill_n(row_sequence, batch_.rows, -1);
  std::fill_n(row_position, batch_.rows, 0);
  if (ids != nullptr) std::copy_n(ids, batch.rows, host_);
  batch_.most_q = std::max(padding.most_q, 1);
  batch_.most_context = std::max(padding.most_context, 1);
  int64_t blocks = 0;
  for (int i = 0; i < batch_.sequences; ++i) {
    sequence[i] = {};
    if (i >= sequences) continue;
    const BatchSequence& s = batch.sequences[static_cast<size_t>(i)];
    const int length = s.ctx_len + s.q_len, count = (length + batch.block_size - 1) / batch.block_size;
    sequence[i] = {.first_row = s.first_row,
                   .q_len = s.q_len,
                   .ctx_len = s.ctx_len,
                   .block_begin = static_cast<int32_t>(blocks),
                   .state_in = s.state_in,
                   .state_out = s.state_out};
    batch_.most_q = std::max(batch_.most_q, s.q_len);
    batch_.most_context = std::max(batch_.most_context, length);
    for (int r = 0; r < s.q_len; ++r) {
      row_sequence[s.first_row + r] = i;
      row_position[s.first_row + r] = s.ctx_len + r;
    }
    if (s.block_table == nullptr) continue;
    CHECK(blocks + count <= limits_.blocks,
          fmt::format("block tables of {} entries: the stage holds {}", blocks + count, limits_.blocks));
    std::copy_n(s.block_table, count, host_ + at.blocks + blocks);
    blocks += count;
  }
  std::fill_n(host_ + at.logit_row, batch_.logit_rows, 0);
  std::copy_n(logit_rows.data(), wanted, host_ + at.logit_row);
  used_ = at.blocks + blocks;
  return batch_;
}

void BatchStage::upload(gpu::Stream* stream) {
  const auto bytes = static_cast<size_t>(used_) * sizeof(int32_t);
  if (stream == nullptr)
    place_.copy_in(device_, host_, bytes);
  else
    stream->copy_in(device_, host_, bytes);
}

void BatchStage::take_ids(const SampleResult* results, int rows, gpu::Stream* stream) {
  if (stream != nullptr) return cuda::take_ids(device_, results, rows, stream->handle());
  for (int row = 0; row < rows; ++row) device_[row] = std::max(results[device_[row]].token, 0);
}

}  // namespace mettle

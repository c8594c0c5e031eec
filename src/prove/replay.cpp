#include "prove/replay.h"

#include <fmt/format.h>

#include <algorithm>

namespace mettle {

void Replay::input(const void* data, size_t bytes, size_t element, Other other) {
  auto* at = static_cast<uint8_t*>(const_cast<void*>(data));
  inputs_.push_back({at, bytes, element, other, {at, at + bytes}});
}
void Replay::input(const TensorView& view, Other other) {
  const size_t element = size_of(view.dtype);
  input(view.data, static_cast<size_t>(view.shape.elements()) * element, element, other);
}
void Replay::output(const char* name, void* data, size_t bytes) {
  auto* at = static_cast<uint8_t*>(data);
  outputs_.push_back({name, at, bytes, {at, at + bytes}, {}});
}
void Replay::output(const char* name, const TensorView& view) {
  output(name, view.data, static_cast<size_t>(view.shape.elements()) * size_of(view.dtype));
}

Replay::Replay(const EmbedArgs& a) : ids_(static_cast<size_t>(a.rows)) {
  input(a.device_ids, static_cast<size_t>(a.rows) * sizeof(int32_t), sizeof(int32_t), Other::kZero);
  output("residual", a.residual);
}
Replay::Replay(const JoinArgs& a) {
  const size_t bytes = static_cast<size_t>(a.residual.shape.elements()) * sizeof(float);
  for (const float* partial : a.partials) input(partial, bytes, sizeof(float), Other::kReversed);
  output("residual", a.residual);
  output("x", a.x);
}
Replay::Replay(const LinearArgs& a) : ws_(a.ws) {
  input(a.x);
  output("y", a.y);
}
Replay::Replay(const MoeArgs& a) : ws_(a.ws) {
  const size_t bytes = static_cast<size_t>(a.rows) * static_cast<size_t>(a.problem.top_k) * 4;
  input(a.x);
  output("partial", a.partial);
  output("selection.ids", a.selection.ids, bytes);
  output("selection.weights", a.selection.weights, bytes);
}
Replay::Replay(const SampleArgs& a) : ws_(a.ws), params_(a.params.begin(), a.params.end()) {
  input(a.logits);
  output("results", a.results.data(), a.results.size_bytes());
  device_params_ = const_cast<DeviceSampleRow*>(a.device->rows);
  input(device_params_, static_cast<size_t>(a.rows) * sizeof(DeviceSampleRow), sizeof(DeviceSampleRow), Other::kKept);
  for (SampleRow& row : params_) row.temperature = 0, row.random = 0;
}

void Replay::batch(const Batch& own) {
  device_ = own.device;
  sequences_.assign(own.sequences.begin(), own.sequences.end());
  for (BatchSequence& s : sequences_) s.ctx_len /= 2, s.state_in = -1;
  kept_ = static_cast<int>(sequences_.size() + 1) / 2;
  batch_ = {own.rows, own.block_size, sequences_, own.device};
  const auto words = static_cast<size_t>(device_->rows) * sizeof(int32_t);
  input(device_->row_sequence, words, sizeof(int32_t), Other::kKept);
  input(device_->row_position, words, sizeof(int32_t), Other::kKept);
  input(device_->sequence, static_cast<size_t>(device_->sequences) * sizeof(DeviceSequence), sizeof(DeviceSequence),
        Other::kKept);
}

Replay::Replay(const AttentionArgs& a) : ws_(a.ws) {
  input(a.x);
  output("partial", a.partial);
  output("k_cache", a.k_cache);
  output("v_cache", a.v_cache);
  batch(*a.batch);
  const int64_t block = a.batch->block_size, rows = a.k_cache.shape[0] * block;
  std::vector<char> written(static_cast<size_t>(rows));
  for (int i = 0; i < kept_; ++i) {
    const BatchSequence& s = sequences_[static_cast<size_t>(i)];
    for (int64_t p = s.ctx_len; p < int64_t{s.ctx_len} + s.q_len; ++p)
      written[static_cast<size_t>(s.block_table[p / block] * block + p % block)] = 1;
  }
  for (Output* cache : {&outputs_[1], &outputs_[2]})
    cache->row_bytes = cache->bytes / static_cast<size_t>(rows), cache->of_others = written;
}
Replay::Replay(const GdnArgs& a) : ws_(a.ws) {
  input(a.x);
  output("partial", a.partial);
  output("conv_state", a.conv_state);
  output("state", a.state);
  batch(*a.batch);
  std::vector<char> written(static_cast<size_t>(a.state.shape[0]));
  for (int i = 0; i < kept_; ++i)
    if (const int slot = sequences_[static_cast<size_t>(i)].state_out; slot >= 0)
      written[static_cast<size_t>(slot)] = 1;
  for (Output* state : {&outputs_[1], &outputs_[2]})
    state->row_bytes = state->bytes / written.size(), state->of_others = written;
}

Replay::~Replay() {
  for (const Part& p : inputs_) std::copy(p.own.begin(), p.own.end(), p.data);
}

void Replay::keep() {
  for (Output& o : outputs_) o.wanted.assign(o.data, o.data + o.bytes);
}

void Replay::put_outputs() {
  for (const Output& o : outputs_) std::copy(o.before.begin(), o.before.end(), o.data);
  if (ws_.bytes > 0) std::memset(ws_.data, 0xFF, ws_.bytes);  // NaN in every float format
}

void Replay::put_others() {
  put_outputs();
  for (const Part& p : inputs_) {
    if (p.other == Other::kZero) std::memset(p.data, 0, p.bytes);
    if (p.other != Other::kReversed) continue;
    for (size_t at = 0; at < p.bytes; at += p.element)
      std::copy_n(p.own.data() + p.bytes - p.element - at, p.element, p.data + at);
  }
  for (size_t r = 0; device_params_ != nullptr && r < params_.size(); ++r)
    device_params_[r].temperature = 0, device_params_[r].random = 0;
  if (device_ == nullptr) return;
  auto* row_sequence = const_cast<int32_t*>(device_->row_sequence);
  auto* row_position = const_cast<int32_t*>(device_->row_position);
  auto* sequence = const_cast<DeviceSequence*>(device_->sequence);
  std::fill_n(row_sequence, device_->rows, -1);
  std::fill_n(row_position, device_->rows, 0);
  for (int i = 0; i < device_->sequences; ++i) {
    DeviceSequence& s = sequence[i];
    if (i >= kept_) {
      s = {};
      continue;
    }
    s.ctx_len /= 2;
    s.state_in = -1;
    for (int r = 0; r < s.q_len; ++r) {
      row_sequence[s.first_row + r] = i;
      row_position[s.first_row + r] = s.ctx_len + r;
    }
  }
}

void Replay::put_own() {
  put_outputs();
  for (const Part& p : inputs_) std::copy(p.own.begin(), p.own.end(), p.data);
}

Verdict Replay::check_others() const {
  for (const Output& o : outputs_)
    for (size_t row = 0; row < o.of_others.size(); ++row) {
      const size_t at = row * o.row_bytes;
      if (o.of_others[row] != 0 || std::memcmp(o.data + at, o.before.data() + at, o.row_bytes) == 0) continue;
      return refuse(VerdictCode::kOverrun, fmt::format("row {} of {}", row, o.name), "the rows of the step",
                    fmt::format("{}: a replayed graph, half of whose sequences are padding, wrote row {}, which is no "
                                "row of the step",
                                o.name, row));
    }
  return {};
}

Verdict Replay::check_own() const {
  for (const Output& o : outputs_) {
    if (std::memcmp(o.data, o.wanted.data(), o.bytes) == 0) continue;
    const auto [have, want] = std::mismatch(o.data, o.data + o.bytes, o.wanted.begin());
    return refuse(VerdictCode::kNondeterministic, "different bits", "the same bits",
                  fmt::format("{} differs at byte {} of {} between a launch and a graph that was captured over other "
                              "inputs and replayed on these",
                              o.name, have - o.data, o.bytes));
  }
  return {};
}

std::unique_ptr<gpu::Graph> capture(gpu::Stream& stream, const std::function<void()>& enqueue) {
  try {
    return std::make_unique<gpu::Graph>(stream, enqueue);
  } catch (const Error& e) {
    stream.wait();  // fails for good after a fault of the device
    throw ProofFailure{refuse(VerdictCode::kNotCapturable, "an error while it is recorded", "a graph",
                              "it cannot be captured in a graph: " + e.message)};
  }
}

}  // namespace mettle

#include "engine/runner.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "models/block.h"
#include "tensor/finite.h"

namespace mettle {
namespace {

Shape with_front(std::initializer_list<int64_t> front, const Shape& rest) {
  Shape shape;
  for (const int64_t size : front) shape.size[static_cast<size_t>(shape.rank++)] = size;
  CHECK(shape.rank + rest.rank <= 4, "cache entry of rank " + std::to_string(rest.rank));
  for (int i = 0; i < rest.rank; ++i) shape.size[static_cast<size_t>(shape.rank++)] = rest[i];
  return shape;
}

}  // namespace

Runner::Runner(std::vector<std::unique_ptr<Model>> ranks, std::vector<std::unique_ptr<Place>> places,
               int threads_per_rank)
    : places_(std::move(places)), ranks_(std::move(ranks)), comm_(static_cast<int>(ranks_.size())) {
  for (size_t r = 0; r < ranks_.size(); ++r) teams_.push_back(std::make_unique<ThreadTeam>(threads_per_rank));
}

Runner::~Runner() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& t : threads_) t.join();
}

void Runner::ready(const Sizes& sizes) {
  const int vocab = ranks_.front()->info().vocab;
  const Shape shape{sizes.logit_rows, vocab};
  logits_ = view_of(place().take(static_cast<size_t>(shape.elements()) * sizeof(float)), DType::kF32, shape);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    std::vector<TensorView> views;
    for (const CacheEntry& entry : ranks_[r]->caches()) {
      const bool paged = entry.kind == CacheEntry::Kind::kPaged;
      const Shape of_entry =
          paged ? with_front({sizes.blocks, sizes.block_size}, entry.shape) : with_front({sizes.slots}, entry.shape);
      void* memory = places_[r]->take(static_cast<size_t>(of_entry.elements()) * size_of(entry.dtype));
      views.push_back(view_of(memory, entry.dtype, of_entry));
    }
    caches_.push_back(views);
    ranks_[r]->ready({.rows = sizes.rows, .logit_rows = sizes.logit_rows, .team_members = teams_[r]->members()},
                     std::move(views), comm_);
  }
  ahead_ids_.resize(static_cast<size_t>(sizes.rows));
  most_marks_ = static_cast<size_t>(std::max(sizes.rows, sizes.logit_rows));  // a graph's padding is marked too
  for (const auto& place : places_)
    marks_.push_back(static_cast<int32_t*>(place->take_shared(most_marks_ * sizeof(int32_t))));
  if (place().kind() == DeviceKind::kCuda) {
    gpu_ = std::make_unique<GpuStep>(*ranks_.front(),
                                     GpuStep::Limits{.rows = sizes.rows,
                                                     .sequences = sizes.logit_rows,
                                                     .blocks = sizes.blocks,
                                                     .block_size = sizes.block_size,
                                                     .context = sizes.context,
                                                     .slots = sizes.slots,
                                                     .deterministic = sizes.deterministic},
                                     logits_, place());
    for (auto& point : points_) point = std::make_unique<gpu::Event>();
    gpu_->capture();
    return;
  }
  for (size_t r = 1; r < ranks_.size(); ++r) threads_.emplace_back([this, r] { work(r); });
}

Stream Runner::stream() { return {teams_.front().get(), gpu_ == nullptr ? nullptr : gpu_->stream().handle()}; }

void Runner::wait() {
  if (gpu_ != nullptr) gpu_->stream().wait();
}

void Runner::run_rank(size_t rank, const Step& step) {
  try {
    Stream stream{teams_[rank].get()};
    ranks_[rank]->forward(step, stream);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    comm_.abort();
  }
}

void Runner::run_ahead(const Step& step, const SampleResult* results) {
  if (gpu_ != nullptr) return gpu_->run(step, true, results);
  Step with_ids = step;
  for (int row = 0; row < step.batch.rows; ++row)
    ahead_ids_[static_cast<size_t>(row)] = std::max(results[step.ids[row]].token, 0);
  with_ids.ids = ahead_ids_.data();
  run(with_ids);
}

void Runner::mark_point(int point) {
  if (gpu_ != nullptr) points_[point]->record(gpu_->stream());
}

void Runner::wait_for(int point) {
  if (gpu_ != nullptr) points_[point]->wait();
}

void Runner::run_eagerly(const Step& step) {
  if (gpu_ != nullptr) return gpu_->run(step, false);
  run(step);
}

void Runner::run_watched(Step step) {
  for (int32_t* marks : marks_) std::fill_n(marks, most_marks_, kUnmarked);
  step.marks = marks_;
  run_eagerly(step);
}

int32_t Runner::mark(int row) const {
  int32_t first = kUnmarked;
  for (const int32_t* marks : marks_) first = std::min(first, marks[row]);
  return first;
}

void Runner::drop_graphs() {
  if (gpu_ != nullptr) gpu_->drop_graphs();
}

void Runner::drop_graphs(const std::array<bool, kRowBuckets.size()>& buckets) {
  if (gpu_ != nullptr) gpu_->drop_graphs(buckets);
}

void Runner::fill(void* to, uint8_t byte, size_t bytes) {
  wait();
  if (gpu_ != nullptr) return gpu::fill(to, byte, bytes);
  std::memset(to, byte, bytes);
}

void Runner::fill_scratch(uint8_t byte) {
  for (const auto& rank : ranks_) fill(rank->scratch().data(), byte, rank->scratch().size());
  fill(logits_.data, byte, logits_.bytes());
}

void Runner::fill_caches(uint8_t byte, int64_t blocks, int64_t slots) {
  for (size_t r = 0; r < ranks_.size(); ++r)
    for (size_t c = 0; c < caches_[r].size(); ++c) {
      const TensorView& cache = caches_[r][c];
      const bool paged = ranks_[r]->caches()[c].kind == CacheEntry::Kind::kPaged;
      fill(cache.data, byte,
           cache.bytes() / static_cast<size_t>(cache.shape[0]) * static_cast<size_t>(paged ? blocks : slots));
    }
}

void Runner::run(const Step& step) {
  if (gpu_ != nullptr) return gpu_->run(step);
  if (ranks_.size() > 1) {
    const std::lock_guard lock(mutex_);
    step_ = &step;
    busy_ = static_cast<int>(ranks_.size()) - 1;
    ++epoch_;
    changed_.notify_all();
  }
  run_rank(0, step);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return busy_ == 0; });
  if (!error_) return;
  const std::exception_ptr error = std::exchange(error_, nullptr);
  comm_.reset();
  std::rethrow_exception(error);
}

void Runner::work(size_t rank) {
  uint64_t seen = 0;
  for (;;) {
    const Step* step = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || epoch_ != seen; });
      if (stop_) return;
      seen = epoch_;
      step = step_;
    }
    run_rank(rank, *step);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace mettle

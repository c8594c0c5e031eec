// A point in a stream's work that the host can wait for while what comes after it goes on.
#pragma once
#include "tensor/gpu.h"

namespace mettle::gpu {

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  void record(Stream& stream);  // the point is behind everything that is enqueued now
  void wait();                  // for the point recorded last; fails with kDevice on any error before it

 private:
  [[maybe_unused]] void* handle_ = nullptr;  // not used in a build without CUDA
};

}  // namespace mettle::gpu

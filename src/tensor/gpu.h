// The CUDA device layer: what a program needs of a GPU beside its kernels. Built without CUDA, or without a driver,
// there is none: count() is 0 and the rest fails with kDevice and the reason. Every failing call names itself.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tensor/device.h"
#include "tensor/place.h"

namespace mettle {

// cpu, cuda (the first), cuda:N, or auto: cuda when a GPU is there, else cpu. A GPU is then in use by this thread.
// Fails with kInvalidRequest for another name, with kDevice for a GPU that is not there.
Device find_device(const std::string& name);

}  // namespace mettle

namespace mettle::gpu {

bool built();            // compiled with CUDA
int count();             // visible devices (CUDA_VISIBLE_DEVICES is honoured)
std::string why_none();  // when count() is 0: not built, no driver, driver too old

Device device(int index);
void use(int index);  // of the calling thread, before anything else here
int64_t free_memory();

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  void* handle() const { return handle_; }  // cudaStream_t
  void wait();                              // until all work is done; fails with kDevice on any error before it
  // Host memory must be pinned (Place::take_shared) for the copy to overlap.
  void copy_in(void* to, const void* from, size_t bytes);
  void copy_out(void* to, const void* from, size_t bytes);

 private:
  void* handle_ = nullptr;
};

// Launches recorded once and replayed with the same pointers.
class Graph {
 public:
  // Fails with kDevice when something in `enqueue` cannot be captured; the stream is usable afterwards.
  Graph(Stream& stream, const std::function<void()>& enqueue);
  ~Graph();
  Graph(const Graph&) = delete;
  void launch(Stream& stream);

 private:
  [[maybe_unused]] void* exec_ = nullptr;  // not used in a build without CUDA
};

std::unique_ptr<Place> place();  // of the device in use

// From now on the Buffers of this process lie where both CPU and GPU reach them (managed memory). For proofs: the
// same cases, guards and judges then serve kernels. The GPU must be idle when the CPU looks: wait() first.
void share_buffers();

// Every byte of device memory set; done when it returns.
void fill(void* to, uint8_t byte, size_t bytes);

void wait(void* stream);  // as Stream::wait()

// From device memory to device memory, in the order of the stream.
void copy_on_device(void* to, const void* from, size_t bytes, void* stream);

// Rows of bytes picked by index: to[i] = from[index[i]]; index lies on the device.
void gather_rows(void* to, const void* from, const int32_t* index, int rows, size_t row_bytes, void* stream);

}  // namespace mettle::gpu

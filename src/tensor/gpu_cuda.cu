#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/gpu.h"
#include "tensor/gpu_check.h"
#include "tensor/gpu_event.h"
#include "tensor/slabs.h"

namespace mettle::gpu {
namespace {

constexpr size_t kStaging = size_t{16} << 20;  // two halves: the copy of one overlaps the filling of the other

std::string version_text(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

class GpuPlace : public Place {
 public:
  GpuPlace() {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaHostAlloc(&staging_, kStaging, cudaHostAllocDefault));
    for (cudaEvent_t& e : copied_) CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  }
  ~GpuPlace() override {
    cudaStreamSynchronize(stream_);
    for (void* p : owned_) cudaFree(p);
    for (void* p : pinned_) cudaFreeHost(p);
    cudaFreeHost(staging_);
    for (cudaEvent_t& e : copied_) cudaEventDestroy(e);
    cudaStreamDestroy(stream_);
  }
  DeviceKind kind() const override { return DeviceKind::kCuda; }

  void* take(size_t bytes) override {
    void* p = slabs_.take(bytes);
    if (p == nullptr)
      fail(Code::kDevice,
           "gpu memory: " + std::to_string(bytes) + " bytes wanted, " + std::to_string(free_memory()) + " free");
    bytes_ = slabs_.bytes();
    return p;
  }

  void* take_shared(size_t bytes) override {
    void* p = nullptr;
    CUDA_CHECK(cudaHostAlloc(&p, std::max<size_t>(bytes, 1), cudaHostAllocPortable | cudaHostAllocMapped));
    std::memset(p, 0, bytes);
    pinned_.push_back(p);
    return p;
  }

  void copy_in(void* to, const void* from, size_t bytes) override {
    constexpr size_t kHalf = kStaging / 2;
    for (size_t at = 0; at < bytes; at += kHalf) {
      const size_t n = std::min(kHalf, bytes - at);
      uint8_t* half = static_cast<uint8_t*>(staging_) + kHalf * static_cast<size_t>(next_);
      CUDA_CHECK(cudaEventSynchronize(copied_[next_]));
      std::memcpy(half, static_cast<const uint8_t*>(from) + at, n);
      CUDA_CHECK(cudaMemcpyAsync(static_cast<uint8_t*>(to) + at, half, n, cudaMemcpyHostToDevice, stream_));
      CUDA_CHECK(cudaEventRecord(copied_[next_], stream_));
      next_ ^= 1;
    }
    // Whoever launches next, on any stream, must find the bytes there.
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  void copy_out(void* to, const void* from, size_t bytes) override {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

 private:
  // Zeroed; null when there is not so much.
  void* allocate(size_t bytes) {
    void* p = nullptr;
    if (const cudaError_t error = cudaMalloc(&p, bytes); error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    } else {
      CUDA_CHECK(error);
    }
    owned_.push_back(p);
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return p;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t copied_[2] = {};
  void* staging_ = nullptr;
  int next_ = 0;
  std::vector<void*> owned_, pinned_;
  Slabs slabs_{[this](size_t bytes) { return allocate(bytes); }};
};

__global__ void gather_kernel(uint8_t* to, const uint8_t* from, const int32_t* index, size_t row_bytes) {
  const uint8_t* row = from + static_cast<size_t>(index[blockIdx.x]) * row_bytes;
  uint8_t* out = to + static_cast<size_t>(blockIdx.x) * row_bytes;
  for (size_t i = threadIdx.x * 2; i + 2 <= row_bytes; i += blockDim.x * 2)
    *reinterpret_cast<uint16_t*>(out + i) = *reinterpret_cast<const uint16_t*>(row + i);
}

}  // namespace

bool built() { return true; }

int count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n;
}

std::string why_none() {
  int n = 0, runtime = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&n);
  cudaGetLastError();
  if (error == cudaSuccess) return n > 0 ? "there is one" : "no CUDA device is visible";
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  if (error == cudaErrorInsufficientDriver)
    return driver == 0 ? "no NVIDIA driver is loaded"
                       : "the driver is too old: it supports CUDA " + version_text(driver) +
                             ", this program needs CUDA " + version_text(runtime);
  return std::string("cudaGetDeviceCount: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
}

Device device(int index) {
  const int n = count();
  if (n == 0) fail(Code::kDevice, "gpu: " + why_none());
  if (index < 0 || index >= n)
    fail(Code::kDevice,
         "device: must be in cuda:0..cuda:" + std::to_string(n - 1) + ", got cuda:" + std::to_string(index));
  cudaDeviceProp p = {};
  CUDA_CHECK(cudaGetDeviceProperties(&p, index));
  int driver = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  Device d;
  d.kind = DeviceKind::kCuda;
  d.sm = p.major * 10 + p.minor;
  d.name = "sm" + std::to_string(d.sm);
  d.model = p.name;
  d.index = index;
  d.multiprocessors = p.multiProcessorCount;
  d.shared_per_block = p.sharedMemPerBlockOptin;
  d.memory = static_cast<int64_t>(p.totalGlobalMem);
  d.driver = "CUDA " + version_text(driver);
  return d;
}

void use(int index) { CUDA_CHECK(cudaSetDevice(index)); }

int64_t free_memory() {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

Stream::Stream() {
  cudaStream_t s = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  handle_ = s;
}
Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}
void Stream::wait() {
  CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)));
  CUDA_CHECK(cudaGetLastError());
}
void Stream::copy_in(void* to, const void* from, size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(handle_)));
}
void Stream::copy_out(void* to, const void* from, size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(handle_)));
}

Event::Event() {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  handle_ = event;
}
Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}
void Event::record(Stream& stream) {
  CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(handle_), static_cast<cudaStream_t>(stream.handle())));
}
void Event::wait() {
  CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)));
  CUDA_CHECK(cudaGetLastError());
}

Graph::Graph(Stream& stream, const std::function<void()>& enqueue) {
  auto* s = static_cast<cudaStream_t>(stream.handle());
  CUDA_CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(s, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(s, &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  CUDA_CHECK(error);
  exec_ = exec;
}
Graph::~Graph() {
  if (exec_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec_));
}
void Graph::launch(Stream& stream) {
  CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec_), static_cast<cudaStream_t>(stream.handle())));
}

std::unique_ptr<Place> place() { return std::make_unique<GpuPlace>(); }

void share_buffers() {
  set_buffer_source({.take = [](size_t bytes) -> void* {
                       void* p = nullptr;
                       if (cudaMallocManaged(&p, bytes) == cudaSuccess) return p;
                       cudaGetLastError();
                       return nullptr;
                     },
                     .give_back = [](void* p) { cudaFree(p); }});
}

void fill(void* to, uint8_t byte, size_t bytes) {
  CUDA_CHECK(cudaMemset(to, byte, bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
}

void wait(void* stream) { CUDA_CHECK(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); }

void copy_on_device(void* to, const void* from, size_t bytes, void* stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)));
}

void gather_rows(void* to, const void* from, const int32_t* index, int rows, size_t row_bytes, void* stream) {
  if (rows == 0) return;
  gather_kernel<<<rows, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), index, row_bytes);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace mettle::gpu

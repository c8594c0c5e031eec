// In a program without CUDA.
#if !METTLE_CUDA
#include "base/error.h"
#include "tensor/gpu.h"
#include "tensor/gpu_event.h"

namespace mettle::gpu {
namespace {

[[noreturn]] void none() { fail(Code::kDevice, "gpu: " + why_none()); }

}  // namespace

bool built() { return false; }
int count() { return 0; }
std::string why_none() { return "this program was built without CUDA (cmake --preset cuda)"; }
Device device(int) { none(); }
void use(int) { none(); }
int64_t free_memory() { none(); }
Stream::Stream() { none(); }
Stream::~Stream() = default;
void Stream::wait() { none(); }
void Stream::copy_in(void*, const void*, size_t) { none(); }
void Stream::copy_out(void*, const void*, size_t) { none(); }
Event::Event() { none(); }
Event::~Event() = default;
void Event::record(Stream&) { none(); }
void Event::wait() { none(); }
Graph::Graph(Stream&, const std::function<void()>&) { none(); }
Graph::~Graph() = default;
void Graph::launch(Stream&) { none(); }
std::unique_ptr<Place> place() { none(); }
void share_buffers() { none(); }
void fill(void*, uint8_t, size_t) { none(); }
void wait(void*) { none(); }
void copy_on_device(void*, const void*, size_t, void*) { none(); }
void gather_rows(void*, const void*, const int32_t*, int, size_t, void*) { none(); }

}  // namespace mettle::gpu

#endif

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/gpu.h"
#include "tensor/place.h"

namespace mettle {
namespace {

void expect_refused(const std::string& name, Code code, const std::string& part) {
  try {
    find_device(name);
    FAIL() << name;
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << name;
    EXPECT_NE(e.message.find(part), std::string::npos) << e.message;
  }
}

TEST(FindDevice, NamesAndTheirRefusals) {
  EXPECT_EQ(find_device("cpu").kind, DeviceKind::kCpu);
  for (const char* name : {"gpu", "gpu:10", "cuda;1", "cuda:", "cuda:x", "cuda:1x", "cuda1", "CPU", ""})
    expect_refused(name, Code::kInvalidRequest, "must be auto, cpu, cuda or cuda:N");
  if (gpu::count() == 0) {
    expect_refused("cuda", Code::kDevice, gpu::why_none());
    EXPECT_EQ(find_device("auto").kind, DeviceKind::kCpu);
  } else {
    EXPECT_EQ(find_device("auto").kind, DeviceKind::kCuda);
    expect_refused("cuda:4096", Code::kDevice, "4096");
  }
}

TEST(Place, HostMemoryIsZeroedCountedAndItsOwn) {
  const auto place = host_place();
  auto* a = static_cast<uint8_t*>(place->take(1000));
  auto* b = static_cast<uint8_t*>(place->take(24));
  EXPECT_EQ(place->bytes(), 1024u);
  EXPECT_EQ(a[999] + b[23], 0);
  const std::vector<uint8_t> from(1000, 7);
  place->copy_in(a, from.data(), from.size());
  std::vector<uint8_t> to(1000);
  place->copy_out(to.data(), a, to.size());
  EXPECT_EQ(to, from);
  EXPECT_EQ(b[0], 0);
}

TEST(FloatArray, CopiesAndSharesItsMemory) {
  FloatArray copy;
  EXPECT_TRUE(copy.empty());
  {
    const FloatArray values(std::vector<float>{1, 2, 3});
    copy = values;
    EXPECT_EQ(copy.data(), values.data());
  }
  EXPECT_EQ(std::vector<float>(copy.begin(), copy.end()), (std::vector<float>{1, 2, 3}));
}

// What a source gives is zeroed, counted and given back to it; buffers from before keep theirs.
TEST(Buffer, TakesFromTheSourceThatIsSet) {
  static int taken = 0, returned = 0;
  Buffer before(100);
  set_buffer_source({.take = [](size_t bytes) -> void* {
                       ++taken;
                       if (bytes > 1000) return nullptr;
                       void* p = std::malloc(bytes);
                       std::memset(p, 9, bytes);
                       return p;
                     },
                     .give_back =
                         [](void* p) {
                           ++returned;
                           std::free(p);
                         }});
  {
    const Buffer b(10);
    EXPECT_EQ(b.data()[9], 0);
    EXPECT_THROW(Buffer(1001), Error);
    before = Buffer(20);
  }
  set_buffer_source({});
  EXPECT_EQ(taken, 3);
  EXPECT_EQ(returned, 1);  // `before` still holds one
  before = Buffer();
  EXPECT_EQ(returned, 2);
}

}  // namespace
}  // namespace mettle

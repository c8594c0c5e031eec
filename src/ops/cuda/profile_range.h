// A named range on the time line of NVIDIA's profilers (`nsys profile --trace=cuda,nvtx`). Where no profiler is
// attached it costs a look at a pointer; in a build without CUDA it does nothing.
#pragma once
#include <string_view>

namespace mettle {

class ProfileRange {
 public:
  explicit ProfileRange(std::string_view literal);  // ends with a 0: a string literal or kName of an op
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace mettle

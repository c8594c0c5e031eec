#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "tensor/gpu.h"

namespace mettle {

Device find_device(const std::string& name) {
  if (name == "cpu" || (name == "auto" && gpu::count() == 0)) return this_cpu();
  int index = 0;
  if (name != "auto" && name != "cuda") {
    constexpr std::string_view kPrefix = "cuda:";
    const char* end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + std::min(kPrefix.size(), name.size()), end, index);
    if (!name.starts_with(kPrefix) || error != std::errc() || at != end)
      fail(Code::kInvalidRequest, fmt::format("device: must be auto, cpu, cuda or cuda:N, got \"{}\"", name));
  }
  Device device = gpu::device(index);
  gpu::use(index);
  return device;
}

}  // namespace mettle

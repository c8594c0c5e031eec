#include "cli/target.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "tensor/device_table.h"
#include "tensor/gpu.h"

namespace mettle {

Device device_of_flag(const std::string& name, bool& named) {
  const std::optional<Device> known = device_of_table(name);
  named = known.has_value();
  if (named) return *known;
  if (name == "auto" || name == "cpu" || name.starts_with("cuda")) return find_device(name);
  std::string list;
  for (const DeviceFacts& f : device_table()) list += fmt::format("{}, ", f.name);
  fail(Code::kInvalidRequest, fmt::format("--device: must be {}cpu, cuda, cuda:N or auto, got \"{}\"", list, name));
}

bool has_weights(const std::string& folder) {
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec))
    if (entry.path().extension() == ".safetensors") return true;
  return false;
}

}  // namespace mettle

// What is known of GPU generations, in one table: a Device to ask supports() about without owning one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/device.h"

namespace mettle {

struct DeviceFacts {
  std::string_view name;          // sm120
  int sm = 0;                     // compute capability, 120: 12.0
  std::string_view card;          // a typical one
  int multiprocessors = 0;        // of that card
  size_t shared_per_block = 0;    // bytes a block may opt in to
  int64_t memory = 0;             // bytes of that card, as sold
  std::string_view target;        // what METTLE_CUDA_ARCHITECTURES needs to use all of its instructions
  std::string_view instructions;  // matrix instructions beyond mma.sync of BF16
};
std::span<const DeviceFacts> device_table();  // in order of compute capability

// A device of the table by its name, as if it were there; nothing for another name.
std::optional<Device> device_of_table(std::string_view name);

}  // namespace mettle

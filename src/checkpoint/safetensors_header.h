// The JSON header of one safetensors file, checked against the size of the file. No file access: fuzzed as it is.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace mettle {

inline constexpr size_t kMaxHeaderBytes = size_t{256} << 20;

// file: the whole file, path: for messages. StoredTensor::file is left null. Order is that of the data in the file.
// Fails with kBadModel as Safetensors::open promises.
std::vector<StoredTensor> read_safetensors_header(std::span<const uint8_t> file, const std::string& path);

}  // namespace mettle

// What explain and inspect are asked about: a device that need not be here, a model that may be only a config.json.
#pragma once
#include <string>

#include "tensor/device.h"

namespace mettle {

// A name of the device table, cpu, cuda, cuda:N or auto. named: taken from the table, not found here. Fails with
// kInvalidRequest and the list of the valid ones.
Device device_of_flag(const std::string& name, bool& named);
// Whether the folder has weights whose formats can be read.
bool has_weights(const std::string& folder);

}  // namespace mettle

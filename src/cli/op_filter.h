// What --op and --backend leave of a model on a device: a filter that leaves nothing is a mistake of who typed it.
#pragma once
#include <span>
#include <string>

#include "ops/problem.h"
#include "tensor/device.h"

namespace mettle {

// Empty: any. Fails with kInvalidRequest, the values and the names that there are, when the model has no such op, or
// none of its ops that are left has a backend of that name for the device.
void check_filter(std::span<const AnyProblem> problems, const Device& device, const std::string& op,
                  const std::string& backend);

}  // namespace mettle

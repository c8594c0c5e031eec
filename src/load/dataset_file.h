// Requests out of a file that anybody may have made.
#pragma once
#include <vector>

#include "load/dataset.h"

namespace mettle {

std::vector<LoadPrompt> read_dataset(const DatasetOptions& options);  // see make_dataset()

}  // namespace mettle

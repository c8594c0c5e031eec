// model.safetensors.index.json: which shard holds which tensor. Parsed as it streams by, since real ones have more than
// a hundred thousand entries.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mettle {

// (tensor, file) pairs of "weight_map". Fails with kBadModel: not JSON, no weight_map or an empty one, a tensor twice,
// a file that is not a plain name in the same folder. path: for messages.
std::vector<std::pair<std::string, std::string>> read_weight_map(std::string_view text, const std::string& path);

}  // namespace mettle

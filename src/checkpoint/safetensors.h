// Safetensors files of a model folder, mapped: one model.safetensors, or the shards named by
// model.safetensors.index.json. Everything about them is checked before the first weight is used.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file_map.h"
#include "tensor/dtype.h"

namespace mettle {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;   // kU8 when not readable
  std::string_view stored_as;  // dtype as the file calls it: "BF16", "F8_E8M0"
  bool readable = true;        // false: a type of the format that nothing here reads (F8_E8M0, F4, U16, ...)
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
  size_t bytes = 0;
  const FileMap* file = nullptr;
};

class Safetensors {
 public:
  // Fails with kBadModel (file, tensor, values): no weights, missing or cut shard, header longer than the file or than
  // 256 MiB, offsets out of range or overlapping or leaving gaps, bytes that do not fit dtype and shape, unknown dtype,
  // a tensor name twice, an index that names a tensor its shard does not hold.
  static Safetensors open(const std::string& folder);
  // One file of any name, with the same checks.
  static Safetensors open_file(const std::string& path);
  Safetensors(Safetensors&&) noexcept;
  ~Safetensors();

  const StoredTensor* find(std::string_view name) const;  // null when absent
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  size_t bytes() const;       // of all tensors
  void check_intact() const;  // no file shrank since it was mapped

 private:
  struct File;  // a map, and the identity of the file it was made from
  Safetensors();
  void add_file(const std::string& path);
  void make_index();

  std::vector<std::unique_ptr<File>> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace mettle

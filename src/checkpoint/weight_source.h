// Where a model's weights come from: a checkpoint, or seeded random numbers for any config (--load-format dummy).
// A model asks for what its weight list names; the source decides each module's format from the tensors present and
// uses the config only to cross-check:
//   quantised by its tensors, another format or none by the config    kBadModel that names both, when the file is
//   opened quantised by its tensors, no quantization_config at all           accepted, one warning line not quantised,
//   though the config promises it (mtp.fc is missing   accepted, one warning line in finish()
//     from exclude lists, newer exports omit the MTP layer)
// A source belongs to one thread, but for what matrix() says.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_team.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor_view.h"
#include "tensor/weight.h"

namespace mettle {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Whether there is a module of that name: a tensor "<module>.weight", "<module>.weight_packed" or "<module>" itself
  // (fused experts have no ".weight"). A dummy source says yes to every name that the config's formats imply.
  virtual bool has(std::string_view module) const = 0;
  // Whether there is a tensor of exactly that name; a dummy source has none.
  virtual bool has_tensor(std::string_view) const { return false; }
  // The module as a [rows, cols] matrix; a fused [e, n, k] tensor is [e * n, k], whose experts' global scales become
  // row_scale. Valid until release(). Values are checked on the first call for a module. Fails with kBadModel (module,
  // values): missing, wrong dtype or shape, scales not finite or negative, global scale NaN, infinite or <= 0, missing
  // scales, NaN weights; with kUnsupported (module, format) for a format nobody reads. A zero block scale is legal.
  // A team shares the passes over the values of a large tensor; the bytes do not depend on it. Calls without one may
  // come from several threads at a time.
  virtual RawMatrix matrix(const std::string& module, int64_t rows, int64_t cols, ThreadTeam* team = nullptr) = 0;
  // A small tensor of any float dtype as float32; name is the full tensor name. Fails when not finite.
  virtual std::vector<float> vector(const std::string& name, const Shape& shape) = 0;
  // Tensors whose name starts with prefix are known and deliberately not used; finish() writes a line with their
  // number, bytes and why.
  virtual void ignore(const std::string& prefix, const std::string& why) = 0;
  // Memory behind matrices handed out so far is no longer needed.
  virtual void release() = 0;
  // End of the load: fails with kBadModel when a tensor of the file was neither used nor ignored (first few names), or
  // when a file shrank meanwhile.
  virtual void finish() = 0;
  // Format that matrix(module, ...) will have, without reading data: memory plans and explain.
  virtual WeightFormat format_of(const std::string& module) const = 0;
  virtual bool is_dummy() const = 0;
};

// config: the whole config.json (quantization_config, or hf_quant_config.json merged under that key). Fails with
// kUnsupported (module, format) before a weight is read when any matrix of the files is in a format nobody reads.
std::unique_ptr<WeightSource> open_weights(const std::string& folder, const nlohmann::json& config);
// Seeded: the same config gives the same bytes for each module, whatever the order of calls. Standard deviation
// 1/sqrt(cols) for matrices, norms near 1 (near 0 where the model adds 1), so that activations stay of order one.
std::unique_ptr<WeightSource> dummy_weights(const nlohmann::json& config, uint64_t seed);

}  // namespace mettle

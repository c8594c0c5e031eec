// A weight source that only listens: every weight that a model's plan asks for, with its size, and what the checkpoint
// (or, without one, the config) has of it. Nothing is refused here; what is wrong is written down.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/quant_rules.h"
#include "checkpoint/weight_source.h"
#include "models/weight_listener.h"

namespace mettle {

struct ListedWeight {
  int64_t rows = 0, cols = 0;  // a vector is one row
  WeightFormat format = WeightFormat::kBf16;
  int64_t bytes = 0;  // in the checkpoint, with scales; by format where there is none
  bool vector = false;
};

// Bytes of that many weights with their block scales; scales of a whole tensor or row are left out.
int64_t bytes_of(WeightFormat format, int64_t rows, int64_t cols);

class WeightList : public WeightSource, public WeightListener {
 public:
  // file: null when there is only a config; must outlive the list.
  WeightList(const nlohmann::json& config, const Safetensors* file);

  bool has(std::string_view module) const override;
  bool has_tensor(std::string_view name) const override;
  WeightFormat format_of(const std::string& module) const override;
  bool is_dummy() const override { return file_ == nullptr; }
  void ignore(const std::string& prefix, const std::string& why) override;
  void wants_matrix(const std::string& module, int64_t rows, int64_t cols) override;
  void wants_vector(const std::string& name, const Shape& shape) override;

  // By name of the module, of the tensor for vectors.
  const std::map<std::string, ListedWeight>& weights() const { return weights_; }
  // Asked for and not there, or there with another size: "name: what".
  const std::vector<std::string>& missing() const { return missing_; }
  // In the checkpoint, asked for by nothing and not kept aside on purpose.
  std::vector<const StoredTensor*> unused() const;
  // Why a tensor is kept aside; empty when it is not.
  std::string why_ignored(std::string_view tensor) const;

 private:
  RawMatrix matrix(const std::string&, int64_t, int64_t, ThreadTeam*) override;
  std::vector<float> vector(const std::string&, const Shape&) override;
  void release() override {}
  void finish() override {}

  const Safetensors* file_;
  std::unique_ptr<WeightSource> config_;  // what the config promises
  std::map<std::string, ListedWeight> weights_;
  std::vector<std::string> missing_;
  std::vector<std::pair<std::string, std::string>> ignored_;
};

}  // namespace mettle

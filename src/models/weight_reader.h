// The one way a model's weight list is read. The same code runs twice: to plan (formats and sizes, no data is touched)
// and to load. What a rank keeps is cut here, so planning, loading and accounting cannot disagree.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "checkpoint/weight_memory.h"
#include "checkpoint/weight_source.h"
#include "models/cut.h"
#include "models/formats.h"

namespace mettle {

class WeightReader {
 public:
  enum class Mode { kPlan, kLoad };
  // The team shares the work on large matrices.
  WeightReader(WeightSource& source, Mode mode, DenseDtype dense, ThreadTeam* team = nullptr)
      : source_(source), mode_(mode), dense_(dense), team_(team) {}

  bool planning() const { return mode_ == Mode::kPlan; }
  ThreadTeam* team() const { return team_; }
  // For members of the team that read at the same time, each its own matrices.
  WeightReader alone() const { return {source_, mode_, dense_}; }
  bool has(const std::string& module) const { return source_.has(module); }
  bool has_tensor(const std::string& name) const { return source_.has_tensor(name); }
  // When planning, data is null and format, rows, cols and name are set.
  RawMatrix matrix(const std::string& module, int64_t rows, int64_t cols);
  // The same of a layer that every token passes and that stands no nearer to a decision than its output: with
  // DenseDtype::kFp8 BF16 comes as FP8, whole rows at a time, so that ranks cut the same codes.
  RawMatrix dense(const std::string& module, int64_t rows, int64_t cols);
  const std::set<std::string>& requantised() const { return requantised_; }  // modules, so far
  std::vector<float> vector(const std::string& name, const Shape& shape);    // zeros when planning
  void ignore(const std::string& prefix, const std::string& why) { source_.ignore(prefix, why); }
  void release() {
    source_.release();
    memory_.release();
  }

 private:
  WeightSource& source_;
  Mode mode_;
  DenseDtype dense_;
  ThreadTeam* team_;
  WeightMemory memory_;
  std::set<std::string> requantised_;
};

RawMatrix keep_rows(const RawMatrix& matrix, Range keep);
// Fails with kUnsupported when the format cannot be cut there (nvfp4: 16, fp8_block: 128).
RawMatrix keep_cols(const RawMatrix& matrix, Range keep);
// Columns between which a matrix of that format may be cut.
int64_t column_unit(WeightFormat format);

// The one format of a projection. Fails with kUnsupported, naming both modules, when its segments differ.
WeightFormat format_of(const RawSegments& segments);

}  // namespace mettle

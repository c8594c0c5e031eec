// Tunings on disk, for this machine's next start and for others like it: a header with a checksum, then JSON that names
// device, build and threads. Kept ones that are damaged or foreign are a miss; one that a person names is an error that
// says what differs. Read as untrusted input: sizes, depths, types and values have limits.
#pragma once
#include <string>
#include <vector>

#include "prove/tune.h"

namespace mettle {

struct TuningIdentity {
  std::string build, device, model, driver, isas;
  int threads = 1;
  bool operator==(const TuningIdentity&) const = default;
};
TuningIdentity tuning_identity(const Device& device, int threads);

struct Tuning {
  TuningIdentity identity;
  std::vector<TunedUnit> units;
};
std::string tuning_text(const Tuning& tuning);
// Fails with kBadModel, after `name`, with what is wrong and where. Checks form, not whether it fits this machine.
Tuning parse_tuning(const std::string& name, std::string_view text);

// One file for each identity under <folder>/tunings. put() merges with what is there and writes at once.
class TuningStore {
 public:
  TuningStore(const std::string& cache_folder, const TuningIdentity& identity);
  std::vector<TunedUnit> load() const;  // empty when there is none or it is damaged
  void put(const TunedUnit& unit);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  TuningIdentity identity_;
  bool warned_ = false;
};

// A file that a person names. Fails with kBadModel naming what differs from this device, build and number of threads.
std::vector<TunedUnit> read_tuning(const std::string& path, const TuningIdentity& here);
// Fails with kBadModel naming the first problem, backend or tactic of it that is unknown or not proved in the report.
void check_tuned(const std::string& path, std::span<const TunedUnit> units, const ProofReport& report);

}  // namespace mettle

// Verdicts on disk: one file per build and device under <cache>/verdicts. A file is a header with a checksum and JSON;
// anything damaged, cut, of another version or foreign is a miss. Written atomically; writers take turns and merge what
// others wrote.
#pragma once
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "prove/prover.h"

namespace mettle {

class VerdictStore {
 public:
  // folder "" or "none": nothing is kept.
  VerdictStore(std::string folder, const std::string& build, const Device& device);

  // Fills verdict, figures and, when measured with that many threads, times. False: a miss.
  bool find(ProofEntry& entry, int threads, bool* timed) const;
  void put(const ProofEntry& entry, int threads);
  // Writes what was put. A folder that cannot be written is one warning.
  void save();
  // Puts it and writes it at once, so that a run that is killed loses no verdict. Waits but a moment for its turn: what
  // it cannot write is written with the next one, or by save().
  void keep(const ProofEntry& entry, int threads);
  const std::string& path() const { return path_; }

  struct Forgotten {
    std::string path, identity;  // identity: "" when the file was damaged
    size_t verdicts = 0;
    uint64_t bytes = 0;
  };
  // Deletes this store's file.
  std::vector<Forgotten> forget();
  // Deletes the files of all builds and devices; others in that folder are left alone. Both fail with kDevice when one
  // cannot be deleted, and wait for their turn as writers do: who is proving at the same time keeps what it finds anew.
  static std::vector<Forgotten> forget_all(const std::string& folder);

 private:
  struct Kept {
    ProofEntry entry;
    std::map<int, std::array<double, kRowBuckets.size()>> us;  // by number of threads
    std::string text;                                          // as it stands in the file; empty: not made yet
  };
  // Which version of the file somebody saw; all zero: none.
  struct Stamp {
    uint64_t inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  static std::map<std::string, Kept> load(const std::string& path, const std::string& identity);
  static Stamp stamp_of(const std::string& path);
  static const std::string& text_of(Kept& kept);
  void write(std::chrono::milliseconds patience, bool last);

  std::string path_, identity_;
  std::map<std::string, Kept> kept_;     // when it was opened
  std::map<std::string, Kept> fresh_;    // put and not written yet
  std::map<std::string, Kept> on_file_;  // while the file bears the stamp
  Stamp stamp_;
  bool swept_ = false, failed_ = false;
};

}  // namespace mettle

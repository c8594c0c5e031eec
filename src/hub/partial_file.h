// A blob on its way: a file of its full size whose chunks arrive in any order, and beside it which of them are there.
// Whoever is killed leaves both, and the next one goes on. A download that the Python client began (a prefix in
// SUM.incomplete) is taken over. The blob's lock must be held.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "hub/cache_folder.h"

namespace mettle::hub {

inline constexpr int64_t kChunkBytes = int64_t{16} << 20;

class PartialFile {
 public:
  PartialFile(const CacheFolder& cache, const RemoteFile& file, Descriptor lock);

  const RemoteFile& file() const { return file_; }
  int64_t chunks() const { return static_cast<int64_t>(done_.size()); }
  int64_t begin_of(int64_t chunk) const { return chunk * kChunkBytes; }
  int64_t end_of(int64_t chunk) const { return std::min(begin_of(chunk) + kChunkBytes, file_.size); }
  bool is_done(int64_t chunk) const { return done_[static_cast<size_t>(chunk)] != 0; }
  int64_t done_bytes() const;

  void write(int64_t at, std::string_view bytes);  // any thread, different places at the same time
  void set_done(int64_t chunk);                    // one thread at a time
  void start_over();                               // nothing of it can be trusted
  // The checksum of what is there; the caller compares. Then publish() makes it the blob.
  std::string checksum() const;
  void publish();
  void discard();  // leaves nothing

 private:
  std::filesystem::path data_path_, state_path_, blob_path_;
  RemoteFile file_;
  Descriptor lock_, data_, state_;
  std::vector<uint8_t> done_;
};

}  // namespace mettle::hub

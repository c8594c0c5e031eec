// One repository in the hub's cache: blobs by checksum, refs, snapshots of links, and locks that the Python client
// honours and takes as well.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "hub/listing.h"

namespace mettle::hub {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }

 private:
  int fd_;
};

class CacheFolder {
 public:
  // Makes the folders; fails with kDevice.
  CacheFolder(const std::filesystem::path& cache, const std::string& repository);

  std::filesystem::path blob(const std::string& sum) const { return folder_ / "blobs" / sum; }
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
  const std::filesystem::path& folder() const { return folder_; }
  bool has_blob(const RemoteFile& file) const;  // with the right size

  // The lock of a blob, held until the descriptor closes; -1 inside when another process has it.
  Descriptor try_lock(const std::string& sum) const;
  // snapshots/COMMIT/NAME -> blobs/SUM, relative.
  void link(const std::string& commit, const RemoteFile& file) const;
  void write_ref(const std::string& revision, const std::string& commit) const;
  int64_t free_bytes() const;

 private:
  std::filesystem::path folder_, locks_;
};

}  // namespace mettle::hub

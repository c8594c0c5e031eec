// A file mapped read-only. A mapped file that somebody truncates raises SIGBUS on access; here that access reads
// zeros and marks the map, so a loader asks check_intact() after it has read and gets an Error instead of a crash.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace mettle {

class FileMap {
 public:
  // Fails with kBadModel (path, errno text) when the file cannot be opened or mapped. An empty file maps to size 0.
  explicit FileMap(const std::string& path);
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Fails with kBadModel if a page of the map was found gone (the file shrank) since it was opened.
  void check_intact() const;
  // Tells the kernel that these bytes will not be read again (drops them from this process, not from the page cache).
  void done_with(size_t offset, size_t bytes) const;

 private:
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;
};

// The whole of a small file; fails with kBadModel, also when it is larger than `limit` bytes.
std::string read_file(const std::string& path, size_t limit);
// Writes beside the target, flushes, renames: readers see the old or the new content, never half. kDevice on failure.
void write_file_atomically(const std::string& path, const std::string& content);

}  // namespace mettle

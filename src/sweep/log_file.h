// What a server writes, kept with a limit: the first half of the limit as it comes, of the rest the last half, and
// between them a line that counts what was left out. A server that floods cannot fill the disk.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace mettle::sweep {

class LogFile {
 public:
  // Replaces what is there. Fails with kDevice when it cannot be written.
  LogFile(const std::string& path, uint64_t limit);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void write(std::string_view bytes);
  void finish();  // writes the tail; nothing may be written after it

  uint64_t bytes() const { return bytes_; }
  uint64_t left_out() const { return left_out_; }
  bool damaged() const { return damaged_; }  // a write failed: the disk is full

 private:
  void put(std::string_view bytes);

  int fd_ = -1;
  uint64_t half_, bytes_ = 0, left_out_ = 0;
  bool damaged_ = false;
  std::string tail_;  // a ring of half_ bytes
  size_t next_ = 0;   // where the next byte of a full ring goes
};

}  // namespace mettle::sweep

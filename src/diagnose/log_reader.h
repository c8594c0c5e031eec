// Lines of logs of any size in constant memory: plain or gzip, files, standard input, folders.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::diagnose {

class LogReader {
 public:
  struct Sink {
    std::function<void(const std::string& file)> on_file;                 // before the first line of each file
    std::function<void(std::string_view line, uint64_t number)> on_line;  // without its newline; number from 1
  };

  // Of a longer line the first `line_limit` bytes are handed on.
  LogReader(Sink sink, size_t line_limit);

  // "-" is standard input. A folder: its text files, by name, folders below it too. Fails with kInvalidRequest (path
  // and reason) when something named cannot be read, is no file or folder, or is a damaged gzip file (one that merely
  // ends too early is a remark). A file of a folder that holds zero bytes near its start is no text and passed over.
  void read_path(const std::string& path);
  void read_text(std::string_view text, const std::string& file);

  uint64_t bytes() const { return bytes_; }  // of text, after unpacking
  uint64_t lines() const { return lines_; }
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  void read_descriptor(int fd, const std::string& name, bool in_folder);
  void read_folder(const std::string& path);
  void begin(const std::string& file);
  void take(std::string_view chunk);
  void end();
  void line(std::string_view text);

  Sink sink_;
  size_t line_limit_;
  std::string partial_;  // start of a line whose end was not read yet
  bool cut_ = false;     // partial_ is full: the rest of the line is dropped
  bool wide_ = false;    // UTF-16: every zero byte is dropped
  std::vector<std::string> remarks_;
  uint64_t number_ = 0, bytes_ = 0, lines_ = 0;
};

}  // namespace mettle::diagnose

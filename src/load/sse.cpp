#include "load/sse.h"

namespace mettle {
namespace {
constexpr size_t kMost = size_t{4} << 20;
}

bool SseParser::push(std::string_view piece, const OnData& on_data) {
  while (!piece.empty() && !failed_) {
    if (after_cr_ && piece.front() == '\n') {  // the second half of \r\n
      after_cr_ = false;
      piece.remove_prefix(1);
      continue;
    }
    after_cr_ = false;
    const size_t end = piece.find_first_of("\r\n");
    const std::string_view part = piece.substr(0, end);
    if (line_.size() + part.size() + data_.size() > kMost) {
      failed_ = true;
      break;
    }
    if (end == std::string_view::npos) {
      line_ += part;
      break;
    }
    after_cr_ = piece[end] == '\r';
    piece.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(part, on_data);
    } else {
      line_ += part;
      take_line(line_, on_data);
      line_.clear();
    }
  }
  return !failed_;
}

void SseParser::finish(const OnData& on_data) {
  if (failed_) return;
  if (!line_.empty()) take_line(line_, on_data);
  line_.clear();
  give_out(on_data);
}

void SseParser::take_line(std::string_view line, const OnData& on_data) {
  if (line.empty()) return give_out(on_data);
  if (line.substr(0, 4) != "data" || (line.size() > 4 && line[4] != ':')) return;
  line.remove_prefix(line.size() > 4 ? 5 : 4);
  if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

void SseParser::give_out(const OnData& on_data) {
  if (!has_data_) return;
  has_data_ = false;
  std::string data;
  data.swap(data_);
  on_data(data);
}

}  // namespace mettle

// Server-sent events out of pieces of a body, split wherever the network split them.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace mettle {

class SseParser {
 public:
  // Called with the data of each event, its lines joined by newlines. Comments and other fields are left out.
  using OnData = std::function<void(std::string_view data)>;

  // False when a line or an event is longer than 4 MiB; nothing more is taken then.
  bool push(std::string_view piece, const OnData& on_data);
  // The body has ended: an event that lacks its empty line is given out all the same, as some servers end so.
  void finish(const OnData& on_data);

 private:
  void take_line(std::string_view line, const OnData& on_data);
  void give_out(const OnData& on_data);

  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false, failed_ = false;
};

}  // namespace mettle

// What a person sees: whether colours and progress bars are wanted, aligned tables, a progress bar.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

bool is_terminal(int fd);
// Colours on this descriptor: a terminal, NO_COLOR unset, TERM not "dumb".
bool wants_colour(int fd);

// Writes to standard error. That it cannot be written is not worth failing for.
void say(std::string_view text);

// Text of somebody else, of the same length: spaces for what commands a terminal (control bytes, U+0080..U+009F).
std::string printable(std::string_view text);

enum class Colour { kNone, kRed, kGreen, kYellow, kBold, kDim };
std::string paint(Colour colour, const std::string& text, bool enabled);

// Columns aligned to the widest cell, two spaces apart; the first row is the heading. Width counts code points.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // `right` lists the columns set flush right (numbers).
  std::string text(const std::vector<size_t>& right = {}) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// A bar on standard error, drawn only on a terminal, at most ten times a second, wiped by the destructor.
class Progress {
 public:
  Progress(std::string what, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void set(uint64_t done, const std::string& detail = {});

 private:
  std::string what_;
  uint64_t total_;
  bool enabled_;
  int64_t last_ms_ = 0;
};

}  // namespace mettle

#include "base/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mettle {
namespace {

size_t code_points(const std::string& s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Its first code points, at most so many.
std::string cut(const std::string& s, size_t most) {
  size_t at = 0;
  for (size_t n = 0; at < s.size(); ++at)
    if ((s[at] & 0xC0) != 0x80 && n++ == most) break;
  return s.substr(0, at);
}

// What, bar, percentage and detail in at most `room` columns. The detail gives way first, then the bar, which from a
// few columns on says nothing, then the name.
std::string progress_line(const std::string& what, uint64_t part, uint64_t total, const std::string& detail,
                          size_t room) {
  constexpr size_t kBar = 24, kLeastBar = 4, kLeastDetail = 4;
  const std::string percent = fmt::format("{:3}%", total > 0 ? part * 100 / total : 0);
  const size_t taken = code_points(what) + percent.size() + 2;
  std::string line = what;
  if (taken + kLeastBar <= room) {
    const size_t bar = std::min(kBar, room - taken), filled = total > 0 ? part * bar / total : 0;
    line += ' ';
    for (size_t i = 0; i < bar; ++i) line += i < filled ? "█" : "░";
  } else if (taken > room + 1) {
    line = cut(what, room > percent.size() + 1 ? room - percent.size() - 1 : 0);
  }
  line = cut(line.empty() ? percent : line + " " + percent, room);
  const size_t left = room - code_points(line);
  return !detail.empty() && left > kLeastDetail ? line + " " + cut(detail, left - 1) : line;
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// One that understands escape sequences.
bool obeys_codes(int fd) {
  const char* term = std::getenv("TERM");
  return is_terminal(fd) && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace

bool is_terminal(int fd) { return isatty(fd) == 1; }

bool wants_colour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");
  return obeys_codes(fd) && (no_colour == nullptr || *no_colour == 0);
}

std::string printable(std::string_view text) {
  std::string safe(text);
  for (size_t i = 0; i < safe.size(); ++i) {
    const auto byte = static_cast<unsigned char>(safe[i]);
    if (byte < 0x20 || byte == 0x7f) safe[i] = ' ';
    if (byte == 0xC2 && i + 1 < safe.size() && (static_cast<unsigned char>(safe[i + 1]) & 0xE0) == 0x80)
      safe[i] = safe[i + 1] = ' ';
  }
  return safe;
}

void say(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string paint(Colour colour, const std::string& text, bool enabled) {
  if (!enabled || colour == Colour::kNone) return text;
  constexpr const char* kCodes[] = {"0", "31", "32", "33", "1", "2"};
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<int>(colour)], text);
}

std::string Table::text(const std::vector<size_t>& right) const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], code_points(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(width[i] - code_points(row[i]), ' ');
      const bool flush_right = std::find(right.begin(), right.end(), i) != right.end();
      line += i > 0 ? "  " : "";
      line += flush_right ? pad + row[i] : row[i] + pad;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

Progress::Progress(std::string what, uint64_t total)
    : what_(std::move(what)), total_(total), enabled_(obeys_codes(STDERR_FILENO)) {}

Progress::~Progress() {
  if (enabled_ && last_ms_ != 0) std::fputs("\r\x1b[K", stderr);
}

void Progress::set(uint64_t done, const std::string& detail) {
  if (!enabled_) return;
  const int64_t now = now_ms();
  if (now - last_ms_ < 100 && done < total_) return;
  last_ms_ = now;
  winsize size = {};
  const int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  // Not to the last column: some terminals go to the next line behind it.
  say("\r\x1b[K" + progress_line(what_, std::min(done, total_), total_, detail, static_cast<size_t>(columns - 1)));
  std::fflush(stderr);
}

}  // namespace mettle

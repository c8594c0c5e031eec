#include "diagnose/line_time.h"

#include <array>
#include <optional>

namespace mettle::diagnose {
namespace {

using std::string_view;

class TimeParser {
 public:
  explicit TimeParser(string_view s) : s_(s) {}

  ParsedTime parse() {
    if (s_.size() < 8) return {};
    if (const ParsedTime t = since_start(); t.length > 0) return t;
    if (!date()) return {};
    return clock();
  }

 private:
  bool digit_at(size_t i) const { return i < s_.size() && s_[i] >= '0' && s_[i] <= '9'; }
  std::optional<int> number(size_t width) {
    int value = 0;
    for (size_t i = 0; i < width; ++i) {
      if (!digit_at(at_ + i)) return std::nullopt;
      value = value * 10 + (s_[at_ + i] - '0');
    }
    at_ += width;
    return value;
  }
  bool is(size_t i, string_view any) const {  // a loop that is unrolled, not a call
    if (i >= s_.size()) return false;
    for (const char c : any)
      if (s_[i] == c) return true;
    return false;
  }

  // Minutes, seconds, milliseconds, microseconds. Only before a level of one letter: it looks like an address.
  ParsedTime since_start() {
    size_t minutes = 0;
    int64_t value = 0;
    for (; digit_at(minutes) && minutes < 7; ++minutes) value = value * 10 + (s_[minutes] - '0');
    at_ = minutes + 1;
    std::optional<int> second, milli, micro;
    const bool parted = minutes > 0 && is(minutes, ".") && (second = number(2)) && is(at_++, ".") &&
                        (milli = number(3)) && is(at_++, ".") && (micro = number(3)) && is(at_, " ") &&
                        is(at_ + 1, "DIWE") && is(at_ + 2, " ");
    ParsedTime t;
    if (parted && *second < 60) {
      t.length = at_;
      t.ms = (value * 60 + *second) * 1000 + *milli;
      t.whole_seconds = false;
      t.clock = Clock::kStart;
    }
    at_ = 0;
    return t;
  }

  // Leaves at_ at the clock. Without a date the day is 0.
  bool date() {
    if (digit_at(0) && digit_at(1) && is(2, ":")) return true;
    if (digit_at(3) && is(4, "-/") && is(7, "-/")) {
      const auto year = number(4);
      ++at_;
      const auto month = number(2);
      ++at_;
      const auto day = number(2);
      clock_ = Clock::kFull;
      return year && month && day && is(at_, " T_") && set_day(*year, *month, *day);
    }
    if (is(2, "/") && is(5, "/") && is(10, "- ")) {
      const auto month = number(2);
      ++at_;
      const auto day = number(2);
      ++at_;
      const auto year = number(4);
      clock_ = Clock::kFull;
      return month && day && year && set_day(*year, *month, *day);
    }
    if (is(2, "-") && is(5, " ")) {
      const auto month = number(2);
      ++at_;
      const auto day = number(2);
      clock_ = Clock::kYear;
      return month && day && set_day(1970, *month, *day);
    }
    static constexpr string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
    if (s_[0] < 'A' || s_[0] > 'S') return false;  // before every line is searched for a month
    const size_t month = kMonths.find(s_.substr(0, 3));
    if (month == string_view::npos || month % 3 != 0 || !is(3, " ") || !is(6, " ")) return false;
    at_ = is(4, " ") ? 5 : 4;
    const auto day = number(6 - at_);
    clock_ = Clock::kYear;
    return day && set_day(1970, static_cast<int>(month / 3) + 1, *day);
  }

  bool set_day(int year, int month, int day) {
    if (month < 1 || month > 12 || day < 1 || day > 31) return false;
    static constexpr std::array<int, 12> kBefore{0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    const int leaps = (year - 1969) / 4 + (year % 4 == 0 && month > 2 ? 1 : 0);
    day_ = int64_t{365} * (year - 1970) + leaps + kBefore[static_cast<size_t>(month) - 1] + day - 1;
    ++at_;
    return true;
  }

  ParsedTime clock() {
    const auto hour = number(2);
    if (!hour || !is(at_, ":")) return {};
    ++at_;
    const auto minute = number(2);
    if (!minute || !is(at_, ":")) return {};
    ++at_;
    const auto second = number(2);
    if (!second || *hour > 24 || *minute > 59 || *second > 60) return {};
    ParsedTime t;
    t.clock = clock_;
    t.ms = ((day_ * 24 + *hour) * 60 + *minute) * 60'000 + int64_t{1000} * *second;
    if (is(at_, ".,") && digit_at(at_ + 1)) {
      t.whole_seconds = false;
      int scale = 100;
      for (++at_; digit_at(at_); ++at_, scale /= 10) t.ms += int64_t{scale} * (s_[at_] - '0');
    }
    if (is(at_, "Z")) {
      ++at_;
    } else if (is(at_, "+-") && digit_at(at_ + 1) && digit_at(at_ + 2) && (is(at_ + 3, ":") || digit_at(at_ + 3))) {
      at_ += is(at_ + 3, ":") ? 6 : 5;
      if (at_ > s_.size()) return {};
    }
    if (at_ < s_.size() && !is(at_, " ]:\t|,")) return {};
    t.length = at_;
    return t;
  }

  string_view s_;
  size_t at_ = 0;
  int64_t day_ = 0;
  Clock clock_ = Clock::kDay;
};

}  // namespace

ParsedTime parse_time(string_view s) { return TimeParser(s).parse(); }

int64_t parse_seconds(string_view s) {
  int64_t ms = 0, scale = 100;
  size_t i = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9' && i < 12; ++i) ms = ms * 10 + (s[i] - '0');
  ms *= 1000;
  for (++i; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i, scale /= 10) ms += scale * (s[i] - '0');
  return ms;
}

}  // namespace mettle::diagnose

#include "server/http_fields.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

namespace mettle {
namespace {

constexpr size_t kLongestName = 255;  // of DNS

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string_view without_port(std::string_view value) {
  const size_t colon = value.rfind(':');
  if (colon == std::string_view::npos || value.ends_with(']')) return value;
  return std::all_of(value.begin() + static_cast<std::ptrdiff_t>(colon) + 1, value.end(), is_digit)
             ? value.substr(0, colon)
             : value;
}

}  // namespace

std::string http_date(std::time_t time) {
  // Not by strftime: its names of days and months are the locale's.
  static constexpr std::array<const char*, 7> kDays{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array<const char*, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm t{};
  gmtime_r(&time, &t);
  char text[80];
  const int n =
      std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[static_cast<size_t>(t.tm_wday)],
                    t.tm_mday, kMonths[static_cast<size_t>(t.tm_mon)], t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
  return {text, static_cast<size_t>(n)};
}

const std::string& http_date_now() {
  thread_local std::time_t written = -1;
  thread_local std::string text;
  if (const std::time_t now = std::time(nullptr); now != written) {
    text = http_date(now);
    written = now;
  }
  return text;
}

bool is_host(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-._~%!$&'()*+,;=:[]").find(c) != std::string_view::npos;
  });
}

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_local_host(std::string_view value) {
  std::string name(without_port(value));
  if (name.size() > kLongestName) return false;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  unsigned char address[sizeof(in6_addr)];
  if (inet_pton(AF_INET, name.c_str(), address) == 1 || inet_pton(AF_INET6, name.c_str(), address) == 1) return true;
  if (name.find('%') != std::string::npos) return false;  // "a%2eb" is a name with a dot to who decodes it
  if (name.ends_with('.')) name.pop_back();               // the root
  std::transform(name.begin(), name.end(), name.begin(), lower);
  return name.find('.') == std::string::npos || name.ends_with(".localhost") || name.ends_with(".local") ||
         name.ends_with(".internal");
}

}  // namespace mettle

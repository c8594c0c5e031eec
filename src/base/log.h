// Log lines on standard error: "I engine: ready". Standard output belongs to results.
#pragma once
#include <fmt/format.h>

#include <string_view>

namespace mettle::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

void set_level(Level level);
Level level();
void write(Level level, std::string_view line);

template <class... A>
void debug(fmt::format_string<A...> f, A&&... a) {
  if (level() <= Level::kDebug) write(Level::kDebug, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void info(fmt::format_string<A...> f, A&&... a) {
  if (level() <= Level::kInfo) write(Level::kInfo, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void warn(fmt::format_string<A...> f, A&&... a) {
  if (level() <= Level::kWarn) write(Level::kWarn, fmt::format(f, std::forward<A>(a)...));
}
template <class... A>
void error(fmt::format_string<A...> f, A&&... a) {
  if (level() <= Level::kError) write(Level::kError, fmt::format(f, std::forward<A>(a)...));
}

}  // namespace mettle::log

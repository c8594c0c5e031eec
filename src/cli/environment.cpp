#include "cli/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"

extern char** environ;

namespace mettle {
namespace {
constexpr std::string_view kKnown[] = {"METTLE_CPU_ISA", "METTLE_MODEL_DIR"};
}

void check_environment() {
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    if (!entry.starts_with("METTLE_")) continue;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      fail(Code::kInvalidRequest, fmt::format("{}: no such variable; known are {}", name, fmt::join(kKnown, ", ")));
  }
}

}  // namespace mettle

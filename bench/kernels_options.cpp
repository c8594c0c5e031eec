#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "kernels_bench.h"

namespace mettle::bench {

Options parse_options(const std::vector<std::string>& arguments, const std::vector<std::string>& sections) {
  Options o;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (i + 1 >= arguments.size()) fail(Code::kInvalidRequest, fmt::format("{}: needs a value", name));
    const std::string& value = arguments[++i];
    if (name == "--threads")
      o.threads = std::stoi(value);
    else if (name == "--rounds")
      o.rounds = std::stoi(value);
    else if (name == "--only")
      o.only = value;
    else if (name == "--json")
      o.json = value;
    else
      fail(Code::kInvalidRequest, fmt::format("unknown option {}", name));
    // A run without a section would look like one that went well.
    if (name == "--only" && std::find(sections.begin(), sections.end(), value) == sections.end())
      fail(Code::kInvalidRequest,
           fmt::format("--only: must be one of {}, got \"{}\"", fmt::join(sections, ", "), value));
  }
  return o;
}

}  // namespace mettle::bench

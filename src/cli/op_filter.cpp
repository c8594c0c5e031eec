#include "cli/op_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/foreign_names.h"

namespace mettle {
namespace {

template <class Name>
void add_new(std::vector<std::string>& names, const Name& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
}

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void check_filter(std::span<const AnyProblem> problems, const Device& device, const std::string& op,
                  const std::string& backend) {
  std::vector<std::string> ops;
  for (const AnyProblem& problem : problems) add_new(ops, op_name_of(problem));
  if (!op.empty() && !holds(ops, op))
    fail(Code::kInvalidRequest, fmt::format("--op: must be an op of this model, {}, got {}", fmt::join(ops, ", "), op));
  if (backend.empty()) return;
  std::vector<std::string> names;
  for (const std::string& each : ops)
    if (op.empty() || each == op)
      for (const std::string& name : backend_names(each, device.kind)) add_new(names, name);
  if (!holds(names, backend))
    fail(Code::kInvalidRequest,
         fmt::format("--backend: no backend of {} with that name is built for {}; there are {}, got {}",
                     op.empty() ? "any op" : op, device.name, fmt::join(names, ", "), backend));
}

}  // namespace mettle

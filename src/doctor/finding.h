// One thing that the doctor looked at.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mettle::doctor {

enum class Severity : uint8_t { kOk, kInfo, kWarning, kError };
const char* name_of(Severity severity);  // ok info warning error

struct Finding {
  std::string group;  // gpu, driver, fabric, cpu, memory, limits, ports, cache, leftovers
  std::string name;   // short: "gpu 0 power"
  Severity severity = Severity::kOk;
  std::string value;  // what is there
  std::string why;    // it matters; empty when ok
  std::string fix;    // a command or what to do; empty when there is nothing to do
};
using Findings = std::vector<Finding>;

}  // namespace mettle::doctor

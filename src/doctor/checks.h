// The checks: each looks at facts and says what it found. None of them changes anything.
#pragma once
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/machine.h"
#include "doctor/nvml.h"
#include "doctor/processes.h"

namespace mettle::doctor {

struct Context {
  const Machine& machine;
  const NvmlFacts& nvml;
  const std::vector<Process>& processes;
  const std::string& hub_cache;
  const std::string& cache_folder;  // of this program; may be empty
};

void check_driver(const Context& c, Findings& out);     // library, driver, toolkit, libraries that would be loaded
void check_gpus(const Context& c, Findings& out);       // memory, power, clocks, ECC, Xid, processes on them
void check_fabric(const Context& c, Findings& out);     // PCIe, peers, ACS, IOMMU
void check_cpu(const Context& c, Findings& out);        // features, NUMA, governor
void check_memory(const Context& c, Findings& out);     // RAM, huge pages, /dev/shm, cgroup, container
void check_limits(const Context& c, Findings& out);     // ulimits
void check_ports(const Context& c, Findings& out);      // 8000 and 30000
void check_hub_cache(const Context& c, Findings& out);  // space
void check_own_cache(const Context& c, Findings& out);  // whether verdicts and timings can be kept

std::string gib(int64_t bytes);  // "1.5 GiB"

}  // namespace mettle::doctor

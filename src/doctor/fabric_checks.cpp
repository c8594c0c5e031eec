#include <fmt/format.h>

#include <algorithm>

#include "doctor/checks.h"

namespace mettle::doctor {
namespace {

const char* name_of_ancestor(int64_t level) {
  return level < 0     ? "unknown path"
         : level == 0  ? "one board"
         : level <= 20 ? "PCIe switches"
         : level == 30 ? "one host bridge"
         : level == 40 ? "host bridges of one NUMA node"
                       : "different NUMA nodes";
}

void check_link(const GpuFacts& g, Findings& out) {
  const auto width = g.number("pcie_width"), widest = g.number("pcie_width_most");
  const auto generation = g.number("pcie_generation"), newest = g.number("pcie_generation_most");
  if (!width || !generation) return;
  Finding f{"fabric", fmt::format("gpu {} PCIe", g.index), Severity::kOk,
            fmt::format("gen {} x{}, able to gen {} x{}", *generation, *width, newest.value_or(*generation),
                        widest.value_or(*width))};
  if (widest && *width < *widest) {
    f.severity = Severity::kWarning;
    f.why = "a narrow link: loading and everything between GPUs takes longer";
    f.fix = "seat the card again; look at risers, the slot's wiring and bifurcation in the firmware's setup";
  } else if (newest && *generation < *newest) {
    f.severity = Severity::kInfo;
    f.why = "links drop while they idle; under load it should be full";
    f.fix =
        fmt::format("nvidia-smi -i {} --query-gpu=pcie.link.gen.current --format=csv -l 1, while it works", g.index);
  }
  out.push_back(std::move(f));
}

void check_peers(const Context& c, Findings& out) {
  for (const PeerFacts& p : c.nvml.peers) {
    Finding f{"fabric", fmt::format("gpu {} - gpu {}", p.a, p.b), Severity::kOk,
              fmt::format("peer access {}, {}",
                          p.status == 0  ? "yes"
                          : p.status < 0 ? "unknown"
                                         : "no",
                          name_of_ancestor(p.ancestor))};
    if (p.status > 0) {
      f.severity = Severity::kInfo;
      f.why = "what goes between them takes the way through the host's memory";
      f.fix = "nvidia-smi topo -p2p r; workstation drivers and host bridges may not allow it";
    }
    out.push_back(std::move(f));
  }
}

// Access Control Services of a bridge: bit 2 sends peer traffic up to the root. Needs root: without it the kernel shows
// 64 bytes. Nothing: not readable. The extended capabilities are a list from 0x100 on.
std::optional<bool> redirects_peers(const std::string& config) {
  const auto byte = [&](size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(config[at])); };
  if (config.size() < 0x104) return std::nullopt;
  size_t at = 0x100;
  for (int steps = 0; steps < 64 && at >= 0x100 && at + 8 <= config.size(); ++steps) {
    const unsigned head = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    if ((head & 0xFFFF) == 0x000D) return (byte(at + 6) & 0x04) != 0;
    at = head >> 20;
  }
  return false;
}

void check_acs(const Context& c, Findings& out) {
  int bridges = 0, hidden = 0;
  std::vector<std::string> redirecting;
  for (const std::string& name : c.machine.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + name;
    if (!c.machine.line(folder + "/class").starts_with("0x0604")) continue;
    ++bridges;
    const std::optional<bool> redirects = redirects_peers(c.machine.read(folder + "/config", 4096).value_or(""));
    if (!redirects)
      ++hidden;
    else if (*redirects)
      redirecting.push_back(name);
  }
  if (bridges == 0) return;
  Finding f{"fabric", "ACS", Severity::kOk,
            fmt::format("{} of {} bridges redirect peer traffic", redirecting.size(), bridges)};
  if (!redirecting.empty()) {
    f.severity = Severity::kWarning;
    f.value += fmt::format(" (first {})", redirecting.front());
    f.why = "peer copies take the way through the root; with the IOMMU on, collectives were seen to hang";
    f.fix =
        fmt::format("sudo setpci -s {} ECAP_ACS+0x6.w=0000, for each bridge above a GPU; or in the firmware's setup",
                    redirecting.front());
  } else if (hidden > 0) {
    f.severity = Severity::kInfo;
    f.value = fmt::format("{} of {} bridges cannot be read", hidden, bridges);
    f.why = "whether they redirect peer traffic is shown to root alone";
    f.fix = "sudo lspci -vvv | grep -i acsctl";
  }
  out.push_back(std::move(f));
}

void check_iommu(const Context& c, Findings& out) {
  const size_t groups = c.machine.list("/sys/kernel/iommu_groups").size();
  const std::string command = c.machine.line("/proc/cmdline");
  const bool through =
      command.find("iommu=pt") != std::string::npos || command.find("iommu.passthrough=1") != std::string::npos;
  Finding f{"fabric", "IOMMU", Severity::kOk,
            groups == 0 ? "off" : fmt::format("{} groups{}", groups, through ? ", pass-through" : ", translating")};
  if (groups > 0 && !through) {
    f.severity = Severity::kWarning;
    f.why = "copies between GPUs on PCIe were seen to hang or to arrive wrong when the IOMMU translates";
    f.fix = "add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX), sudo update-grub, reboot";
  }
  out.push_back(std::move(f));
}

}  // namespace

void check_fabric(const Context& c, Findings& out) {
  for (const GpuFacts& g : c.nvml.gpus) check_link(g, out);
  check_peers(c, out);
  if (c.nvml.gpus.size() < 2) return;  // traps between GPUs
  check_acs(c, out);
  check_iommu(c, out);
}

}  // namespace mettle::doctor

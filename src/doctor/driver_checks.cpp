#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "doctor/checks.h"

namespace mettle::doctor {
namespace {

// NVIDIA functions on the PCI bus: display controllers of vendor 10de.
int count_nvidia_functions(const Machine& machine) {
  int count = 0;
  for (const std::string& name : machine.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + name;
    count += machine.line(folder + "/vendor") == "0x10de" && machine.line(folder + "/class").starts_with("0x03");
  }
  return count;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ...": the number.
std::string kernel_module_version(const Machine& machine) {
  const std::string text = machine.line("/proc/driver/nvidia/version");
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9' || (at > 0 && text[at - 1] != ' ')) continue;
    const size_t end = text.find_first_not_of("0123456789.", at);
    const std::string word = text.substr(at, end - at);
    if (std::count(word.begin(), word.end(), '.') > 0) return word;
  }
  return "";
}

struct Toolkit {
  std::string path;
  int major = 0, minor = 0;
};

std::vector<Toolkit> toolkits(const Machine& machine) {
  std::vector<Toolkit> all;
  for (const std::string& name : machine.list("/usr/local")) {
    if (!name.starts_with("cuda")) continue;
    const std::string path = "/usr/local/" + name;
    const auto json = nlohmann::json::parse(machine.read(path + "/version.json").value_or(""), nullptr, false);
    if (!json.is_object() || !json.contains("cuda") || !json["cuda"].is_object()) continue;
    const auto& cuda = json["cuda"];
    if (!cuda.contains("version") || !cuda["version"].is_string()) continue;
    const auto version = cuda["version"].get<std::string>();
    Toolkit t{path};
    if (std::sscanf(version.c_str(), "%d.%d", &t.major, &t.minor) >= 1) all.push_back(t);
  }
  return all;
}

void check_toolkits(const Context& c, Findings& out) {
  const int64_t driver = c.nvml.cuda_version;
  for (const Toolkit& t : toolkits(c.machine)) {
    Finding f{"driver", t.path, Severity::kOk, fmt::format("CUDA {}.{}", t.major, t.minor)};
    const int64_t toolkit = t.major * 1000 + t.minor * 10;
    if (driver > 0 && t.major > driver / 1000) {
      f.severity = Severity::kError;
      f.value += fmt::format(", the driver knows CUDA {}.{}", driver / 1000, driver % 1000 / 10);
      f.why = "programs of a newer major version do not start on this driver";
      f.fix = "install a driver for it (13: 580 or newer, 12: 525 or newer), or use an older toolkit";
    } else if (driver > 0 && toolkit > driver) {
      f.severity = Severity::kInfo;
      f.value += fmt::format(", the driver knows CUDA {}.{}", driver / 1000, driver % 1000 / 10);
      f.why = "machine code runs, PTX of the newer version does not";
      f.fix = "build machine code for the device's own architecture";
    }
    out.push_back(std::move(f));
  }
}

void check_libraries(const Context& c, Findings& out) {
  for (const LoadedLibrary& l : c.nvml.libraries) {
    if (l.path.empty() && c.nvml.gpus.empty()) continue;  // nobody would load it
    Finding f{"driver", l.name, Severity::kOk, l.path};
    if (l.path.empty()) {
      // Only the driver's own library is needed by everybody.
      const bool needed = l.name == "libcuda.so.1";
      f.severity = needed ? Severity::kError : Severity::kInfo;
      f.value = needed ? l.error : "not found by the loader";
      f.why =
          needed ? "no program can use the GPU" : "programs that link it need it in LD_LIBRARY_PATH or bring their own";
      if (needed)
        f.fix = "sudo ldconfig; or install the driver's user space (in a container: nvidia-container-toolkit)";
    } else if (l.path.find("/stubs/") != std::string::npos) {
      f.severity = Severity::kError;
      f.why = "a stub for linking: every call fails";
      f.fix = "take the stubs folder out of LD_LIBRARY_PATH";
    } else if (l.name == "libcuda.so.1" && !c.nvml.driver.empty() && l.path.find(c.nvml.driver) == std::string::npos) {
      f.severity = l.path.find("compat") != std::string::npos ? Severity::kInfo : Severity::kWarning;
      f.why = fmt::format("not of the driver {} that runs", c.nvml.driver);
      f.fix = "ldconfig -p | grep libcuda.so; remove what another driver or image left";
    }
    out.push_back(std::move(f));
  }
}

}  // namespace

void check_driver(const Context& c, Findings& out) {
  const int functions = count_nvidia_functions(c.machine);
  const std::string module = kernel_module_version(c.machine);
  Finding f{"driver", "NVIDIA driver", Severity::kOk};
  if (c.nvml.not_installed) {
    f.value = functions == 0 ? "none, and no NVIDIA GPU on the PCI bus"
                             : fmt::format("none ({}), but {} NVIDIA GPU(s) on the PCI bus", c.nvml.failure, functions);
    f.severity = functions == 0 && module.empty() ? Severity::kInfo : Severity::kError;
    f.why = functions == 0 ? "mettle serves from the CPU" : "without the driver's libraries no program sees the GPU";
    if (f.severity == Severity::kError)
      f.fix = "install the driver (sudo apt install nvidia-driver), or start the container with --gpus all";
  } else if (!c.nvml.failure.empty()) {
    f.value = fmt::format("{}{}", c.nvml.failure, module.empty() ? "" : fmt::format(" (kernel module {})", module));
    f.severity = Severity::kError;
    f.why = "the driver's library does not work: no program can use the GPU, or not all of them";
    f.fix = c.nvml.failure_code == 18
                ? "the library is newer than the loaded kernel module: reboot, or stop all users of the GPU and "
                  "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"
                : "sudo dmesg | grep -iE 'nvrm|xid'; nvidia-smi; a reboot resets what hangs";
  } else {
    f.value = fmt::format("{}, CUDA {}.{}, {} GPU(s)", c.nvml.driver, c.nvml.cuda_version / 1000,
                          c.nvml.cuda_version % 1000 / 10, c.nvml.gpus.size());
    if (!module.empty() && module != c.nvml.driver) {
      f.severity = Severity::kError;
      f.value += fmt::format(", kernel module {}", module);
      f.why = "library and kernel module are of different drivers";
      f.fix = "reboot";
    }
  }
  out.push_back(std::move(f));
  if (!c.nvml.gpus.empty() && !c.machine.exists("/dev/nvidia-uvm"))
    out.push_back({"driver", "/dev/nvidia-uvm", Severity::kError, "not there",
                   "CUDA cannot start without it, though nvidia-smi works",
                   "sudo modprobe nvidia_uvm; in a container: pass the device in"});
  check_toolkits(c, out);
  check_libraries(c, out);
}

}  // namespace mettle::doctor

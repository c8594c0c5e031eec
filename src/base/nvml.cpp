#include "base/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

namespace mettle {
namespace {

constexpr unsigned kTextBytes = 128;

}  // namespace

Nvml::Nvml(const std::string& library) : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    const char* why = dlerror();
    why_not_ = why == nullptr ? "does not load" : why;
    return;
  }
  code_ = call("nvmlInit_v2");
  if (code_ == kMissing)
    why_not_ = "has no nvmlInit_v2";
  else if (code_ != 0)
    why_not_ = error_text(code_);
}

Nvml::~Nvml() {
  if (library_ == nullptr) return;
  if (code_ == 0) call("nvmlShutdown");
  dlclose(library_);
}

void* Nvml::symbol(const char* name) const { return library_ == nullptr ? nullptr : dlsym(library_, name); }

std::string Nvml::error_text(int code) const {
  auto* function = reinterpret_cast<const char* (*)(int)>(symbol("nvmlErrorString"));
  const char* text = function == nullptr ? nullptr : function(code);
  const std::string told = text == nullptr ? "" : std::string(text, strnlen(text, 200));
  return told.empty() ? "error " + std::to_string(code) : told;
}

int Nvml::count(unsigned& gpus) const {
  gpus = 0;
  const int result = call("nvmlDeviceGetCount_v2", &gpus);
  gpus = result == 0 ? std::min(gpus, kMostGpus) : 0;
  return result;
}

std::string Nvml::text(const char* function) const {
  char text[kTextBytes] = {};
  return call(function, static_cast<char*>(text), kTextBytes - 1) == 0 ? text : "";
}

std::string Nvml::text(Gpu gpu, const char* function) const {
  char text[kTextBytes] = {};
  return call(function, gpu, static_cast<char*>(text), kTextBytes - 1) == 0 ? text : "";
}

std::optional<Nvml::Memory> Nvml::memory(Gpu gpu) const {
  Memory memory = {};
  return call("nvmlDeviceGetMemoryInfo", gpu, &memory) == 0 ? std::optional(memory) : std::nullopt;
}

std::vector<Nvml::Process> Nvml::processes(Gpu gpu) const {
  std::vector<Process> list(kMostProcesses);
  unsigned count = kMostProcesses;
  if (call("nvmlDeviceGetComputeRunningProcesses_v3", gpu, &count, list.data()) != 0) return {};
  list.resize(std::min(count, kMostProcesses));
  std::erase_if(list, [](const Process& p) { return p.pid == 0; });  // counted, not told
  return list;
}

}  // namespace mettle

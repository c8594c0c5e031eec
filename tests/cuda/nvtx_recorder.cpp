// What NVTX loads in place of a profiler (NVTX_INJECTION64_PATH): it adds to the file that NVTX_RECORDER_FILE names one
// line for each range that begins or ends: process, thread, then + and the name, or -.
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

int file = -1;
thread_local int depth = 0;

// One write a line: lines of several threads and processes stay whole.
void tell(char sign, const char* name) {
  char line[256];
  const int bytes = std::snprintf(line, sizeof line, "%d %d %c%.200s\n", getpid(), gettid(), sign, name);
  if (write(file, line, static_cast<size_t>(bytes)) != bytes) std::abort();
}

int NVTX_API push(const char* name) {
  tell('+', name);
  return depth++;
}
int NVTX_API pop() {
  tell('-', "");
  return --depth;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int NVTX_API
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const char* path = std::getenv("NVTX_RECORDER_FILE");
  if (path == nullptr) return 0;
  file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int entries = 0;
  if (file < 0 || callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &entries) == 0 ||
      entries <= NVTX_CBID_CORE_RangePop)
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

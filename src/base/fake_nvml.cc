// A driver library for tests. FAKE_NVML chooses its mood: good, mismatch (init fails), crash, hang, odd (numbers and
// names out of all proportion), lost (one GPU does not answer), trouble (every warning there is), slow (half a second
// for each GPU), bare (nothing but a start that fails).
#include <unistd.h>

#include <cstdlib>
#include <cstring>

extern "C" {

static int mood(const char* name) {
  const char* now = getenv("FAKE_NVML");
  return now != NULL && strcmp(now, name) == 0;
}
static int number(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value == NULL ? otherwise : atoi(value);
}
static int say(char* out, unsigned size, const char* text) {
  strncpy(out, text, size);
  return 0;
}
#define DEVICE(pointer) ((long)(pointer)-1)

int nvmlInit_v2(void) {
  if (mood("crash")) abort();
  if (mood("hang"))
    for (;;) pause();
  return mood("mismatch") ? 18 : mood("bare") ? 999 : 0;
}
const char* nvmlErrorString(int code) {
  if (code == 999) return NULL;
  return code == 18 ? "Driver/library version mismatch" : code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) { return say(out, size, "580.95.05"); }
int nvmlSystemGetNVMLVersion(char* out, unsigned size) { return say(out, size, "13.580.95.05"); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = mood("odd") ? 4000000000u : 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (mood("lost") && index == (unsigned)number("FAKE_NVML_LOST", 1)) return 15;
  if (mood("slow")) usleep(500000);
  *device = (void*)(long)(index + 1);
  return 0;
}
int nvmlDeviceGetName(void* d, char* out, unsigned size) {
  (void)d;
  if (!mood("odd")) return say(out, size, "NVIDIA RTX PRO 6000 Blackwell");
  memset(out, 0xFF, size);  // no end, no UTF-8
  return 0;
}
int nvmlDeviceGetUUID(void* d, char* out, unsigned size) {
  return say(out, size, DEVICE(d) == 0 ? "GPU-00000000" : "GPU-11111111");
}
int nvmlDeviceGetCudaComputeCapability(void* d, int* major, int* minor) {
  (void)d;
  return *major = mood("odd") ? -7 : 12, *minor = 0, 0;
}
int nvmlDeviceGetMemoryInfo(void* d, unsigned long long* m) {
  (void)d;
  m[0] = mood("odd") ? ~0ull : 96ull << 30;
  m[2] = mood("good") ? 600ull << 20 : 20ull << 30;
  m[1] = m[0] - m[2];
  return 0;
}
struct fake_utilization {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* d, struct fake_utilization* v) {
  return v->gpu = DEVICE(d) == 0 ? 97 : 3, v->memory = 55, 0;
}
int nvmlDeviceGetPowerUsage(void* d, unsigned* v) { return (void)d, *v = 100000, 0; }
int nvmlDeviceGetEnforcedPowerLimit(void* d, unsigned* v) { return (void)d, *v = mood("trouble") ? 300000 : 600000, 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void* d, unsigned* v) { return (void)d, *v = 600000, 0; }
int nvmlDeviceGetPowerManagementLimitConstraints(void* d, unsigned* least, unsigned* most) {
  return (void)d, *least = 150000, *most = 600000, 0;
}
int nvmlDeviceGetClockInfo(void* d, int type, unsigned* v) {
  return (void)d, (void)type, *v = mood("trouble") ? 375 : 2430, 0;
}
int nvmlDeviceGetMaxClockInfo(void* d, int type, unsigned* v) { return (void)d, (void)type, *v = 3090, 0; }
int nvmlDeviceGetTemperature(void* d, int sensor, unsigned* v) { return (void)d, (void)sensor, *v = 40, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* d, unsigned long long* v) {
  return (void)d, *v = mood("odd") ? ~0ull : mood("trouble") ? 0x40 : 1, 0;
}
int nvmlDeviceGetEccMode(void* d, unsigned* now, unsigned* pending) { return (void)d, *now = *pending = 1, 0; }
int nvmlDeviceGetTotalEccErrors(void* d, int type, int counter, unsigned long long* v) {
  return (void)d, (void)type, (void)counter, *v = mood("trouble") ? 3 : 0, 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* d, unsigned* v) { return (void)d, *v = mood("trouble") ? 1 : 5, 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void* d, unsigned* v) { return (void)d, *v = 5, 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void* d, unsigned* v) { return (void)d, *v = mood("trouble") ? 4 : 16, 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void* d, unsigned* v) { return (void)d, *v = 16, 0; }
int nvmlDeviceGetPersistenceMode(void* d, unsigned* v) { return (void)d, *v = mood("trouble") ? 0 : 1, 0; }
int nvmlDeviceGetComputeMode(void* d, unsigned* v) { return (void)d, *v = mood("trouble") ? 3 : 0, 0; }
struct fake_pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
};
int nvmlDeviceGetPciInfo_v3(void* d, struct fake_pci* pci) {
  return say(pci->text, 31, DEVICE(d) == 0 ? "00000000:01:00.0" : "00000000:02:00.0");
}
struct fake_process {
  unsigned pid;
  unsigned long long bytes;
  unsigned a, b;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void* d, unsigned* count, struct fake_process* list) {
  if (mood("odd")) return *count = 0xFFFFFFF0u, 0;  // more than there was room for, none of it written
  *count = 0;
  if (DEVICE(d) == 0 && number("FAKE_NVML_PID", 0) != 0) {
    list[0].pid = (unsigned)number("FAKE_NVML_PID", 0);
    list[0].bytes = 19ull << 30;
    list[1].pid = 4243;  // of an earlier call; beyond what is counted
    *count = 1;
  }
  return 0;
}
int nvmlDeviceGetP2PStatus(void* a, void* b, int index, unsigned* status) {
  return (void)a, (void)b, (void)index, *status = mood("trouble") ? 1 : 0, 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, unsigned* level) {
  return (void)a, (void)b, *level = mood("trouble") ? 50 : 20, 0;
}

}  // extern "C"

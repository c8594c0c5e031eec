// How fast a GPU reads units of 4,608 bytes (8,192 NVFP4 weights with their scales) by the order in which warps take
// them and by what they ask for ahead:
//   read_orders [times a block's warps wait in multiplications of 4 clocks for each unit, 0 when left out]
// One block a multiprocessor but for the sweeps. A line: us of reading 302, 151, 75 and 19 MB that are not in L2, as
// medians of graphs, and the rate between the first two. See bench/notes/cuda-moe-products.md.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

constexpr int kUnit = 4608, kUnitsOfItem = 4;  // an item: a tile row of the gate_up matrix of the 35B shape
constexpr uint32_t kItems[] = {16384, 8192, 4096, 1024};
constexpr size_t kMemory = size_t{8} << 30;

void check(cudaError_t e, const char* call) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "read_orders: %s: %s\n", call, cudaGetErrorString(e));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

__global__ void fill(uint32_t* p, size_t n) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x)
    p[i] = static_cast<uint32_t>(i * 2654435761u) ^ static_cast<uint32_t>(i >> 13);
}

__device__ __forceinline__ uint4 load(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

struct Unit {
  uint4 v[9];
  __device__ __forceinline__ void load_from(const uint8_t* p, int lane) {
#pragma unroll
    for (int i = 0; i < 9; ++i) v[i] = load(p + i * 512 + lane * 16);
  }
  // The last one first, or fewer loads would be under way at a time.
  __device__ __forceinline__ uint32_t use(uint32_t sum, int waits) const {
#pragma unroll
    for (int i = 8; i >= 0; --i) sum = (sum ^ v[i].x ^ v[i].y ^ v[i].z ^ v[i].w) * 5u;
    for (int i = 0; i < waits; ++i) sum = sum * 5u + 1u;
    return sum;
  }
};

enum class Order {
  kShares,        // a block has a share of items that follow each other, its warps take one after the other
  kShareOfUnits,  // the same, unit by unit
  kItems,         // item by item in the order of memory, by all warps
  kUnits,         // unit by unit
  kFourWarps      // item by item, every block's so far apart as there are blocks, four warps an item
};
enum class Ahead {
  kNothing,    // the next unit is asked for when this one has been used
  kToL2,       // it is asked for to L2, by one instruction (SM90; else as below), when this one is begun
  kToL2Lines,  // the same, a line a lane
  kRegisters   // it goes to a second set of registers meanwhile
};

template <int WARPS, Order ORDER, Ahead AHEAD>
__global__ __launch_bounds__(WARPS * 32, 1) void read(const uint8_t* p, uint32_t items, int waits, uint32_t* out) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = blockIdx.x, blocks = gridDim.x;
  const uint32_t begin = uint64_t{items} * block / blocks, end = uint64_t{items} * (block + 1) / blocks;
  const uint32_t number = block * WARPS + warp, numbers = blocks * WARPS;
  const bool share = ORDER == Order::kShares || ORDER == Order::kShareOfUnits;
  const uint32_t last = kUnitsOfItem * (share ? end : items);
  const auto at = [&](uint32_t n) {  // the unit that the warp takes n-th
    const uint32_t item = n / kUnitsOfItem, unit = n % kUnitsOfItem;
    if (ORDER == Order::kShares) return kUnitsOfItem * (begin + warp + item * WARPS) + unit;
    if (ORDER == Order::kShareOfUnits) return kUnitsOfItem * begin + warp + n * WARPS;
    if (ORDER == Order::kItems) return kUnitsOfItem * (number + item * numbers) + unit;
    if (ORDER == Order::kUnits) return number + n * numbers;
    return kUnitsOfItem * (block + (warp / 4 + n * (WARPS / 4)) * blocks) + warp % 4;
  };
  uint32_t sum = 0;
  Unit now;
  if (at(0) < last) now.load_from(p + size_t{at(0)} * kUnit, lane);
  for (uint32_t n = 0; at(n) < last; ++n) {
    const bool more = at(n + 1) < last;
    const uint8_t* next = p + size_t{at(n + 1)} * kUnit;
#if __CUDA_ARCH__ >= 900
    constexpr bool kOneInstruction = AHEAD == Ahead::kToL2;
    if (kOneInstruction && more && lane == 0)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(next), "n"(kUnit));
#else
    constexpr bool kOneInstruction = false;
#endif
    if (!kOneInstruction && (AHEAD == Ahead::kToL2 || AHEAD == Ahead::kToL2Lines) && more)
      for (uint32_t i = lane * 128; i < kUnit; i += 32 * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(next + i));
    if (AHEAD == Ahead::kRegisters) {
      const Unit before = now;
      if (more) now.load_from(next, lane);
      sum = before.use(sum, waits);
    } else {
      sum = now.use(sum, waits);
      if (more) now.load_from(next, lane);
    }
  }
  if (sum == 0x12345) out[block] = sum;
}

// A share a block, all of its threads beside each other.
__global__ __launch_bounds__(512) void sweep(const uint8_t* p, uint32_t items, int, uint32_t* out) {
  const uint32_t chunks = items * (kUnitsOfItem * kUnit / 16), share = (chunks + gridDim.x - 1) / gridDim.x;
  const uint32_t begin = blockIdx.x * share, end = min(chunks, begin + share);
  uint32_t sum = 0;
  for (uint32_t i = begin + threadIdx.x; i < end; i += 512 * 8) {
    uint4 v[8];
#pragma unroll
    for (uint32_t u = 0; u < 8; ++u) v[u] = i + u * 512 < end ? load(p + size_t{i + u * 512} * 16) : uint4{};
#pragma unroll
    for (int u = 7; u >= 0; --u) sum = (sum ^ v[u].x ^ v[u].y ^ v[u].z ^ v[u].w) * 5u;
  }
  if (sum == 0x12345) out[blockIdx.x] = sum;
}

using Launch = std::function<void(const uint8_t*, uint32_t, cudaStream_t)>;

double median_us(const uint8_t* memory, uint32_t items, const Launch& launch, cudaStream_t stream) {
  const size_t bytes = size_t{items} * kUnitsOfItem * kUnit, places = kMemory / bytes;
  const int calls = static_cast<int>(std::min<size_t>(places, 40));
  cudaGraph_t graph;
  cudaGraphExec_t run;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) launch(memory + static_cast<size_t>(i) * bytes, items, stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&run, graph, 0));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> us;
  for (int i = 0; i < 8; ++i) {
    float ms = 0;
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(run, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) us.push_back(1000.0 * ms / calls);  // the first one warms up
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaGraphExecDestroy(run));
  CHECK(cudaGraphDestroy(graph));
  std::nth_element(us.begin(), us.begin() + 3, us.end());
  return us[3];
}

}  // namespace

int main(int argc, char** argv) {
  const int waits = argc > 1 ? std::atoi(argv[1]) : 0;
  uint8_t* memory = nullptr;
  uint32_t* out = nullptr;
  int blocks = 0;
  cudaStream_t stream = nullptr;
  CHECK(cudaMalloc(&memory, kMemory));
  CHECK(cudaMalloc(&out, 4096 * 4));
  CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  fill<<<1024, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(memory), kMemory / 4);
  CHECK(cudaStreamSynchronize(stream));
  const auto line = [&](const char* name, const Launch& launch) {
    double us[4];
    for (int i = 0; i < 4; ++i) us[i] = median_us(memory, kItems[i], launch, stream);
    const double bytes = (kItems[0] - kItems[1]) * double{kUnitsOfItem * kUnit};
    std::printf("%-52s %8.2f %8.2f %8.2f %8.2f us %6.2f TB/s\n", name, us[0], us[1], us[2], us[3],
                bytes / (us[0] - us[1]) * 1e-6);
  };
  for (const int n : {1, 2})
    line(n == 1 ? "sweep, a block a multiprocessor" : "sweep, two",
         [&](const uint8_t* p, uint32_t items, cudaStream_t s) {
           sweep<<<static_cast<unsigned>(n * blocks), 512, 0, s>>>(p, items, waits, out);
         });
#define LINE(WARPS, ORDER, AHEAD)                                                                           \
  line(#WARPS " warps, " #ORDER ", ahead: " #AHEAD, [&](const uint8_t* p, uint32_t items, cudaStream_t s) { \
    read<WARPS, Order::ORDER, Ahead::AHEAD>                                                                 \
        <<<static_cast<unsigned>(blocks), WARPS * 32, 0, s>>>(p, items, waits, out);                        \
  });
  LINE(20, kShares, kNothing)
  LINE(20, kShareOfUnits, kNothing)
  LINE(20, kUnits, kNothing)
  LINE(20, kShares, kToL2)
  LINE(20, kShares, kToL2Lines)
  LINE(20, kShareOfUnits, kToL2)
  LINE(20, kItems, kToL2)
  LINE(20, kUnits, kToL2)
  LINE(20, kFourWarps, kToL2)
  LINE(16, kShares, kRegisters)
  LINE(16, kUnits, kRegisters)
  LINE(12, kShares, kRegisters)
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(stream));
}

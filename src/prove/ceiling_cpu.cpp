// Loops that do nothing but read, or nothing but multiply and add, with the widest instructions there are.
#include <fmt/format.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>

#include "prove/ceiling.h"
#include "prove/ceiling_cpu.h"
#include "tensor/buffer.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;
using Lanes = uint64_t __attribute__((vector_size(16)));

volatile uint64_t sink;
volatile float float_sink;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

uint64_t read_plain(const uint8_t* p, int64_t bytes) {
  Lanes sum[8] = {};
  for (int64_t i = 0; i + 128 <= bytes; i += 128) {
    __builtin_prefetch(p + i + 2048);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Lanes v;
      std::memcpy(&v, p + i + j * 16, 16);
      sum[j] ^= v;
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] ^= sum[j];
  return sum[0][0] ^ sum[0][1];
}

// Without being unrolled the chains would live in memory. Multiply-adds of one call are counted by the caller: kChains
// * lanes * rounds.
constexpr int kChains = 12;

float fma_plain(int64_t rounds) {
  float a[kChains];
  for (int j = 0; j < kChains; ++j) a[j] = static_cast<float>(j);
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (float& x : a) x = x * 0.999f + 0.5f;
  float sum = 0;
  for (const float x : a) sum += x;
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* p, int64_t bytes) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 2048), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 2176), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j)
      sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + j * 32)));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_xor_si256(sum[0], sum[j]);
  uint64_t out[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), sum[0]);
  return out[0] ^ out[1] ^ out[2] ^ out[3];
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const uint8_t* p, int64_t bytes) {
  __m512i sum[8];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (int64_t i = 0; i + 512 <= bytes; i += 512) {
    for (int j = 0; j < 512; j += 128) _mm_prefetch(reinterpret_cast<const char*>(p + i + 2048 + j), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(p + i + j * 64));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm512_xor_si512(sum[0], sum[j]);
  uint64_t out[8];
  _mm512_storeu_si512(out, sum[0]);
  for (int i = 1; i < 8; ++i) out[0] ^= out[i];
  return out[0];
}

__attribute__((target("avx2,fma"))) float fma_avx2(int64_t rounds) {
  __m256 a[kChains];
  const __m256 m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.5f);
  for (int j = 0; j < kChains; ++j) a[j] = _mm256_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (__m256& x : a) x = _mm256_fmadd_ps(x, m, c);
  float sum = 0;
  for (const __m256& x : a) sum += _mm256_cvtss_f32(x);
  return sum;
}

__attribute__((target("avx512f"))) float fma_avx512(int64_t rounds) {
  __m512 a[kChains];
  const __m512 m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(0.5f);
  for (int j = 0; j < kChains; ++j) a[j] = _mm512_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (__m512& x : a) x = _mm512_fmadd_ps(x, m, c);
  float sum = 0;
  for (const __m512& x : a) sum += _mm512_cvtss_f32(x);
  return sum;
}

__attribute__((target("avx512f,avx512bw,avx512bf16"))) float dot_avx512bf16(int64_t rounds) {
  __m512 a[kChains];
  const __m512bh m = (__m512bh)_mm512_set1_epi16(0x3C00), c = (__m512bh)_mm512_set1_epi16(0x3B80);
  for (int j = 0; j < kChains; ++j) a[j] = _mm512_set1_ps(static_cast<float>(j));
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (__m512& x : a) x = _mm512_dpbf16_ps(x, m, c);
  float sum = 0;
  for (const __m512& x : a) sum += _mm512_cvtss_f32(x);
  return sum;
}
#endif

struct Loop {
  float (*run)(int64_t rounds) = fma_plain;
  int lanes = 1;  // multiply-adds of one instruction
};

// Best of short samples: other processes only ever take away.
double gflops_of(const Loop& loop, ThreadTeam& team) {
  constexpr int64_t kRounds = 20'000;
  constexpr double kSeconds = 0.05;
  double best = 0;
  for (const auto begin = Clock::now(); seconds_since(begin) < kSeconds || best == 0;) {
    const auto start = Clock::now();
    team.run([&](int) { float_sink = loop.run(kRounds); });
    best = std::max(best, 2.0 * kChains * loop.lanes * kRounds * team.members() / seconds_since(start) / 1e9);
  }
  return best;
}

double gbs_of(const Buffer& memory, int64_t bytes, const Device& device, ThreadTeam& team) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  constexpr double kSeconds = 0.08;
  const int64_t piece = std::min(bytes, kPiece);
  double best = 0;
  int64_t next = 0;
  for (const auto begin = Clock::now(); seconds_since(begin) < kSeconds || best == 0;) {
    // Small ones several times over: one fork of the team takes as long as reading them.
    const int times = static_cast<int>(std::max<int64_t>(1, kPiece / piece));
    const auto start = Clock::now();
    team.run([&](int member) {
      const Span s = share_of(piece / 512, member, team.members());
      for (int i = 0; i < times; ++i)
        sink = read_memory(memory.data() + next + s.begin * 512, (s.end - s.begin) * 512, device);
    });
    const double rate = static_cast<double>(piece) * times / seconds_since(start) / 1e9;
    next = next + 2 * piece <= bytes ? next + piece : 0;
    best = std::max(best, rate);
  }
  return best;
}

// Median of forks and joins with nothing to do.
double fork_us_of(ThreadTeam& team) {
  std::vector<double> us(201);
  for (double& t : us) {
    const auto start = Clock::now();
    team.run([](int) {});
    t = seconds_since(start) * 1e6;
  }
  std::nth_element(us.begin(), us.begin() + 100, us.end());
  return us[100];
}

}  // namespace

uint64_t read_memory(const uint8_t* data, int64_t bytes, const Device& cpu) {
#if defined(__x86_64__)
  if (cpu.has(Isa::kAvx512)) return read_avx512(data, bytes);
  if (cpu.has(Isa::kAvx2)) return read_avx2(data, bytes);
#endif
  return read_plain(data, bytes);
}

Ceiling probe_cpu(const Device& device, int threads) {
  constexpr int64_t kSizes[] = {int64_t{32} << 10, int64_t{256} << 10, int64_t{1} << 20,
                                int64_t{4} << 20,  int64_t{16} << 20,  int64_t{256} << 20};
  ThreadTeam team(threads);
  Ceiling ceiling;
  const Buffer memory(static_cast<size_t>(kSizes[std::size(kSizes) - 1]));
  std::memset(memory.data(), 1, memory.size());
  for (const int64_t bytes : kSizes) ceiling.reads.push_back({bytes, gbs_of(memory, bytes, device, team)});
  ceiling.fork_us = fork_us_of(team);
  Loop fma;
#if defined(__x86_64__)
  if (device.has(Isa::kAvx2)) fma = {fma_avx2, 8};
  if (device.has(Isa::kAvx512)) fma = {fma_avx512, 16};
#endif
  ceiling.math.push_back({"fma_f32", gflops_of(fma, team)});
#if defined(__x86_64__)
  if (device.has(Isa::kAvx512Bf16)) ceiling.math.push_back({"dot_bf16", gflops_of({dot_avx512bf16, 32}, team)});
#endif
  return ceiling;
}

}  // namespace mettle

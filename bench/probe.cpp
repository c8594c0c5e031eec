#include "probe.h"

#include <cstring>

namespace mettle::bench {
namespace {

using Lanes = uint64_t __attribute__((vector_size(16)));

uint64_t read_all(const uint8_t* p, int64_t bytes) {
  Lanes sum[8] = {};
  for (int64_t i = 0; i + 128 <= bytes; i += 128) {
    __builtin_prefetch(p + i + 2048);
    for (int j = 0; j < 8; ++j) {
      Lanes v;
      std::memcpy(&v, p + i + j * 16, 16);
      sum[j] ^= v;
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] ^= sum[j];
  return sum[0][0] ^ sum[0][1];
}

volatile uint64_t sink;

}  // namespace

Probe::Probe(int threads) : team_(threads), memory_(size_t{384} << 20) {
  std::memset(memory_.data(), 1, memory_.size());
}

void Probe::read(int pieces) {
  for (int i = 0; i < pieces; ++i) {
    const uint8_t* piece = memory_.data() + next_;
    next_ = (next_ + kPiece) % static_cast<int64_t>(memory_.size());
    const double start = seconds(team_.members());
    team_.run([&](int member) {
      const Span s = share_of(kPiece / 4096, member, team_.members());
      sink = read_all(piece + s.begin * 4096, (s.end - s.begin) * 4096);
    });
    times_.push_back(seconds(team_.members()) - start);
  }
}

}  // namespace mettle::bench

#include "probe.h"

#include <cstring>

#include "prove/ceiling.h"

namespace mettle::bench {
namespace {
volatile uint64_t sink;
}  // namespace

Probe::Probe(int threads) : team_(threads), memory_(size_t{384} << 20) {
  std::memset(memory_.data(), 1, memory_.size());
}

void Probe::read(int pieces) {
  static const Device cpu = this_cpu();
  for (int i = 0; i < pieces; ++i) {
    const uint8_t* piece = memory_.data() + next_;
    next_ = (next_ + kPiece) % static_cast<int64_t>(memory_.size());
    const double start = seconds(team_.members());
    team_.run([&](int member) {
      const Span s = share_of(kPiece / 4096, member, team_.members());
      sink = read_memory(piece + s.begin * 4096, (s.end - s.begin) * 4096, cpu);
    });
    times_.push_back(seconds(team_.members()) - start);
  }
}

}  // namespace mettle::bench

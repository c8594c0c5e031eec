#include <fmt/format.h>

#include "kernels_bench.h"
#include "kernels_inputs.h"
#include "probe.h"

namespace mettle::bench {

// Packing at load, and sampling over a vocabulary of 248,320, both on one thread.
void load_and_sample(const Options& o, Report& out) {
  Probe probe(1);
  Stream stream{&probe.team()};
  out.line("one thread: packing (GB/s of checkpoint bytes) and sampling of one row of 248,320 logits (ms)");
  for (const WeightFormat format :
       {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16, WeightFormat::kF32}) {
    constexpr int64_t kRows = 1024, kCols = 1024;
    std::vector<uint8_t> data(static_cast<size_t>(kRows * kCols * 4), 0x11),
        scales(static_cast<size_t>(kRows * kCols / 16), 0x30);
    RawMatrix raw{.format = format,
                  .rows = kRows,
                  .cols = kCols,
                  .data = data.data(),
                  .scales = scales.data(),
                  .scale_row_bytes = kCols / 16};
    raw.row_bytes = format == WeightFormat::kNvfp4  ? kCols / 2
                    : format == WeightFormat::kFp8  ? kCols
                    : format == WeightFormat::kBf16 ? kCols * 2
                                                    : kCols * 4;
    std::vector<double> times;
    for (int i = 0; i < 4 * o.rounds; ++i) {
      const double start = seconds(1);
      const PackedMatrix m = pack_tile16({raw});
      times.push_back(seconds(1) - start);
    }
    const double rate = static_cast<double>(kRows * raw.row_bytes) / best_tenth(times) / 1e9;
    out.line(fmt::format("pack {:8} {:8.2f}", name_of(format), rate));
    out.record(fmt::format(R"({{"section":"pack","format":"{}","gbs":{:.3f}}})", name_of(format), rate));
  }
  const SampleProblem p{248320, 248320};
  std::vector<float> logits(static_cast<size_t>(p.vocab));
  std::normal_distribution<float> normal(0, 3);
  for (float& l : logits) l = normal(random());
  for (const char* name : {"cpu", "reference"}) {
    const Backend<SampleOp>& b = backend<SampleOp>(name);
    const Tactic tactic = b.tactics(p, this_cpu()).back();
    Buffer ws(b.workspace(tactic, p, 1, 1));
    for (const float temperature : {0.f, 1.f}) {
      std::vector<double> times;
      SampleResult result;
      for (int i = 0; i < o.rounds; ++i) {
        const SampleRow row{.temperature = temperature, .top_p = temperature > 0 ? .95f : 1.f, .random = i / 100.0};
        const double start = seconds(1);
        run_op<SampleOp>(
            {&b, tactic},
            {p, 1, {logits.data(), DType::kF32, {1, p.vocab}}, {&row, 1}, {&result, 1}, {ws.data(), ws.size()}},
            stream);
        times.push_back(seconds(1) - start);
      }
      out.line(fmt::format("sample {:10} temperature {} {:8.2f}", name, temperature, best_tenth(times) * 1e3));
      out.record(fmt::format(R"({{"section":"sample","backend":"{}","temperature":{},"ms":{:.3f}}})", name, temperature,
                             best_tenth(times) * 1e3));
    }
  }
}

}  // namespace mettle::bench

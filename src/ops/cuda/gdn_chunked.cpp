// gdn on a GPU, longer sequences in chunks on tensor cores: see gdn_chunked.h.
#include "ops/cuda/gdn_chunked.h"

#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/cuda/support.h"

namespace mettle {
namespace {

cuda::GdnChunks carve(reference::Carver& c, const GdnProblem& p, int64_t rows) {
  cuda::GdnChunks s;
  const int64_t slots = cuda::gdn_chunk_slots(rows);
  s.slots = static_cast<int>(slots);
  s.keys = c.take<uint16_t>(slots * p.key_heads * 4 * cuda::gdn_key_part(p.dk));
  s.solved = c.take<uint16_t>(slots * p.value_heads * 4 * cuda::kGdnSolvedPart);
  s.decays = c.take<float>(slots * p.value_heads * 2 * cuda::kGdnChunk);
  return s;
}

Verdict supports(const GdnProblem& p, const Device& device) {
  if (Verdict v = cuda::gdn_supports(p, device); !v.ok() && v.code != VerdictCode::kNotBuilt) return v;
  if (device.shared_per_block < cuda::gdn_scan_bytes(p.dk))
    return refuse(VerdictCode::kSmemTooSmall, fmt::format("{} bytes a block", device.shared_per_block),
                  fmt::format("{} bytes", cuda::gdn_scan_bytes(p.dk)));
  return cuda_built();
}

#if METTLE_CUDA
void run(const Tactic&, const GdnArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  cuda::GdnRecurrent s = cuda::gdn_call(carver, a);
  s.four_rows = true;
  const cuda::GdnChunks chunks = carve(carver, a.problem, s.rows);
  cuda::gdn_recurrent(s, *a.weights, a.x.as<uint16_t>(), a.partial.as<float>(), stream.cuda, &chunks);
}
#endif

}  // namespace

extern const Backend<GdnOp> gdn_cuda_chunked;
const Backend<GdnOp> gdn_cuda_chunked = {
    .name = "chunked",
    .numerics = {.gdn_inner = Rounds::kBf16},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = supports,
    .tactics = [](const GdnProblem&, const Device&) { return std::vector<Tactic>{{.name = "pairs"}}; },
    .workspace =
        [](const Tactic&, const GdnProblem& p, int rows, int) {
          reference::Carver carver({});
          cuda::gdn_scratch(carver, p, rows);
          carve(carver, p, rows);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle

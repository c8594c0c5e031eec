#include "prove/timed_weights.h"

namespace mettle {

// Their texts: gpu_cuda.cu, buffer.cpp, gpu_check.h.
bool says_no_room(const Error& e) {
  if (e.code != Code::kDevice) return false;
  if (e.message.find("cudaErrorMemoryAllocation") != std::string::npos) return true;
  return e.message.starts_with("gpu memory: ") || e.message.starts_with("memory: ");
}

size_t timed_bytes(const PackedMatrix& m) { return m.bytes(); }
size_t timed_bytes(const GdnWeights& w) { return w.qkv.bytes() + w.z.bytes() + w.ba.bytes() + w.out.bytes(); }
size_t timed_bytes(const AttentionWeights& w) { return w.qkv.bytes() + w.out.bytes(); }
size_t timed_bytes(const MoeWeights& w) {
  size_t bytes = w.router.bytes() + w.shared.gate_up.bytes() + w.shared.down.bytes();
  for (const PackedExpert& e : w.experts) bytes += e.gate_up.bytes() + e.down.bytes();
  return bytes;
}

PackedMatrix timed_copy(const PackedMatrix& m, Place& place) {
  if (m.empty()) return m;
  // Scales of rows may lie elsewhere, where experts share a matrix; a GPU reads them there.
  PackedMatrix bare = m;
  bare.row_scale = nullptr;
  PackedMatrix copy = place_matrix(bare, place);
  copy.row_scale = m.row_scale;
  return copy;
}

GdnWeights timed_copy(const GdnWeights& w, Place& place) {
  GdnWeights copy = w;
  for (PackedMatrix* m : {&copy.qkv, &copy.z, &copy.ba, &copy.out}) *m = timed_copy(*m, place);
  return copy;
}

AttentionWeights timed_copy(const AttentionWeights& w, Place& place) {
  AttentionWeights copy = w;
  for (PackedMatrix* m : {&copy.qkv, &copy.out}) *m = timed_copy(*m, place);
  return copy;
}

MoeWeights timed_copy(const MoeWeights& w, Place& place) {
  MoeWeights copy = w;
  size_t bytes = 0, apart = 0;
  for (size_t e = 0; e < copy.experts.size(); ++e) {
    PackedExpert& expert = copy.experts[e];
    const PackedExpert& own = w.experts[e];
    if (bytes + own.gate_up.bytes() + own.down.bytes() > kTimedExperts && apart > 0) {
      expert.gate_up.data = copy.experts[e % apart].gate_up.data;
      expert.down.data = copy.experts[e % apart].down.data;
      continue;
    }
    expert = {timed_copy(own.gate_up, place), timed_copy(own.down, place)};
    bytes += own.gate_up.bytes() + own.down.bytes();
    apart = e + 1;
  }
  for (PackedMatrix* m : {&copy.router, &copy.shared.gate_up, &copy.shared.down}) *m = timed_copy(*m, place);
  point_at_experts(copy);
  return copy;
}

}  // namespace mettle

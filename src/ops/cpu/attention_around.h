// What the CPU methods of attention share: projections by gemv or gemm (the tactic's method), norm, rotation, append,
// and the gate behind the core. A method says how the queries of a key/value head meet the cache.
#pragma once
#include "ops/attention.h"
#include "ops/cpu/product.h"

namespace mettle::cpu {

// What a method needs beside the projections, in floats a member.
size_t attention_workspace(const Tactic& tactic, const AttentionProblem& p, int rows, int members, size_t own_floats);
Verdict attention_supports(const AttentionProblem& p, const Device& device);

class AttentionAround {
 public:
  AttentionAround(const Tactic& tactic, const AttentionArgs& a, Stream& stream, size_t own_floats);

  void begin();  // projections; q and k normed and rotated, k and v appended
  void end();    // the output projection

  const AttentionArgs& args() const { return a_; }
  const AttentionProblem& problem() const { return a_.problem; }
  const Kernels& kernels() const { return kernels_; }
  Stream& stream() const { return stream_; }
  int members() const { return members_; }
  int group() const { return a_.problem.heads / a_.problem.kv_heads; }
  int position(int row) const;
  const float* query(int row, int head) const;                       // behind norm and rotation
  float* own(int member) const;                                      // the method's floats of that member
  AttendArgs over_cache(const BatchSequence& s, int kv_head) const;  // where its keys and values lie
  // The core output of a row's head: scaled as the cache's values are, gated, as the output product reads it. `o` is
  // used up; room: head_dim floats.
  void finish(int row, int head, float* o, float* room) const;

 private:
  int head_stride() const { return a_.problem.gate ? 2 * a_.problem.head_dim : a_.problem.head_dim; }
  void norm_and_rotate(const FloatArray& weight, const float* cosines, const float* sines, float* head) const;
  void append(int row) const;

  const AttentionArgs& a_;
  const Tactic& tactic_;
  Stream& stream_;
  const Kernels& kernels_;
  int members_;
  Product qkv_product_, out_product_;
  float* widened_ = nullptr;
  float* qkv_ = nullptr;         // [rows, qkv_rows]
  void* core_ = nullptr;         // [rows, heads * head_dim] as the output product reads it
  int32_t* sequence_ = nullptr;  // [rows] of the batch's sequences
  uint8_t* panels_ = nullptr;    // per member
  float* own_ = nullptr;         // per member
  size_t panel_stride_ = 0, own_stride_ = 0;
};

}  // namespace mettle::cpu

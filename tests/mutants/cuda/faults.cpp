#include "faults.h"

#include "base/error.h"

namespace mettle::planted {

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
#include "planted_faults.inc"
  };
  return all;
}

const std::vector<Slice>& slices() {
  static const std::vector<Slice> all = [] {
    const MoeProblem tiny_moe{
        .hidden = 256, .experts = 16, .top_k = 4, .width = 128, .shared_width = 128, .shared_gate = true};
    MoeProblem many_experts = tiny_moe;
    many_experts.hidden = 2048, many_experts.experts = 256, many_experts.top_k = 8;
    many_experts.width = many_experts.shared_width = 32;
    const AttentionProblem tiny_attention{.hidden = 256,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 64,
                                          .rotary_dim = 16,
                                          .gate = true,
                                          .norm_plus_one = true};
    AttentionProblem wide_heads = tiny_attention, codes = tiny_attention;
    wide_heads.head_dim = 256, wide_heads.rotary_dim = 64;
    codes.cache = CacheFormat::kE4M3;
    return std::vector<Slice>{
        {"embed", EmbedProblem{6144, 256}},
        {"join", JoinProblem{.hidden = 2048, .ranks = 2, .plus_one = true}},
        {"join_tail", JoinProblem{.hidden = 2084, .ranks = 2, .plus_one = true}},
        {"head", LinearProblem{.in = 2048, .out = 456, .format = WeightFormat::kNvfp4}},
        {"head_long", LinearProblem{.in = 6144, .out = 456, .format = WeightFormat::kNvfp4}},
        {"fp8", LinearProblem{.in = 1024, .out = 456, .format = WeightFormat::kFp8}},
        {"bf16", LinearProblem{.in = 1040, .out = 456, .format = WeightFormat::kBf16}},
        {"moe", tiny_moe},
        {"moe256", many_experts},
        {"attention", tiny_attention},
        {"attention256", wide_heads},
        {"attention_fp8", codes},
        {"gdn", GdnProblem{.hidden = 256, .key_heads = 2, .value_heads = 4, .dk = 64, .dv = 64}},
        {"gdn_fp8", GdnProblem{.hidden = 2048,
                               .key_heads = 2,
                               .value_heads = 4,
                               .dk = 64,
                               .dv = 128,
                               .in_format = WeightFormat::kFp8,
                               .out_format = WeightFormat::kFp8}},
        {"sample", SampleProblem{.vocab = 7760, .usable = 7751}},
    };
  }();
  return all;
}

const AnyProblem& problem_of(const std::string& slice) {
  for (const Slice& s : slices())
    if (s.name == slice) return s.problem;
  fail(Code::kInternal, "faults: no slice \"" + slice + "\"");
}

}  // namespace mettle::planted

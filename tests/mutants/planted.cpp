#include "planted.h"

#include <deque>

#include "healthy.h"

namespace mettle::mutants {
namespace {

// Backends live as long as the program; tactics are asked for by function pointer, so a planted backend offers one: the
// last of what it wraps.
template <class Op>
struct Keeper {
  static std::deque<Backend<Op>>& backends() {
    static std::deque<Backend<Op>> all;
    return all;
  }
};

template <class Op>
std::vector<Tactic> last_tactic(const typename Op::Problem& problem, const Device& device) {
  return {fast_of<Op>().tactics(problem, device).back()};
}

template <class Op>
const Backend<Op>* keep(const Fault<Op>& fault) {
  Backend<Op> b = fault.of.empty() ? fast_of<Op>() : *cpu_backend<Op>(fault.of);
  b.name = fault.name;
  b.run = fault.run;
  b.tactics = last_tactic<Op>;
  // Faults of the workspace need one; what they compute with takes its own.
  b.workspace = [](const Tactic&, const typename Op::Problem&, int, int) -> size_t { return 256; };
  return &Keeper<Op>::backends().emplace_back(b);
}

template <class F>
void for_each_op(F&& visit) {
  visit(std::type_identity<EmbedOp>{});
  visit(std::type_identity<JoinOp>{});
  visit(std::type_identity<LinearOp>{});
  visit(std::type_identity<MoeOp>{});
  visit(std::type_identity<AttentionOp>{});
  visit(std::type_identity<GdnOp>{});
  visit(std::type_identity<SampleOp>{});
}

}  // namespace

std::vector<Name> all_faults() {
  std::vector<Name> out;
  for_each_op([&]<class Op>(std::type_identity<Op>) {
    for (const Fault<Op>& f : faults_of<Op>()) out.push_back({Op::kName, f.name});
  });
  return out;
}

Candidates planted(const std::function<bool(const Name&)>& wanted) {
  Candidates c;
  for_each_op([&]<class Op>(std::type_identity<Op>) {
    for (const Fault<Op>& f : faults_of<Op>())
      if (wanted({Op::kName, f.name})) c.of<Op>().push_back(keep<Op>(f));
  });
  return c;
}

Candidates healthy() {
  Candidates c;
  for_each_op([&]<class Op>(std::type_identity<Op>) {
    for (const Backend<Op>* b : backends_of<Op>()) {
      if (cpu_backend<Op>(b->name) != b) continue;
      c.of<Op>().push_back(b);
    }
    for (const Fault<Op>& f : copies_of<Op>()) c.of<Op>().push_back(keep<Op>(f));
  });
  return c;
}

bool shows(std::string_view fault, const AnyProblem& problem) {
  const auto* attention = std::get_if<AttentionProblem>(&problem);
  const bool codes = attention != nullptr && attention->cache == CacheFormat::kE4M3;
  return fault.starts_with("cache_") == codes;
}

const std::vector<Geometry>& geometries() {
  static const std::vector<Geometry> all = [] {
    Geometry large{"397b", {}}, small{"35b", {}};
    large.problems = {
        EmbedProblem{248'320, 4096},
        JoinProblem{.hidden = 4096, .ranks = 4, .plus_one = true},
        LinearProblem{.in = 4096, .out = 248'320 / 32 / 32 + 30, .format = WeightFormat::kNvfp4},
        MoeProblem{.hidden = 4096, .experts = 512, .top_k = 10, .width = 32, .shared_width = 32, .shared_gate = true},
        AttentionProblem{.hidden = 512,
                         .heads = 8,
                         .kv_heads = 2,
                         .head_dim = 256,
                         .rotary_dim = 64,
                         .gate = true,
                         .norm_plus_one = true},
        GdnProblem{.hidden = 512, .key_heads = 2, .value_heads = 8, .dk = 128, .dv = 128},
        SampleProblem{.vocab = 248'320 / 32, .usable = 248'077 / 32},
    };
    small.problems = {
        EmbedProblem{248'320, 2048},
        JoinProblem{.hidden = 2048, .ranks = 2, .plus_one = true},
        LinearProblem{.in = 2048, .out = 456, .format = WeightFormat::kNvfp4},
        MoeProblem{.hidden = 2048, .experts = 256, .top_k = 8, .width = 32, .shared_width = 32, .shared_gate = true},
        AttentionProblem{.hidden = 256,
                         .heads = 16,
                         .kv_heads = 2,
                         .head_dim = 256,
                         .rotary_dim = 64,
                         .gate = true,
                         .norm_plus_one = true},
        GdnProblem{.hidden = 256, .key_heads = 2, .value_heads = 4, .dk = 128, .dv = 128},
        SampleProblem{.vocab = 248'320 / 64, .usable = 248'077 / 64},
    };
    Geometry codes{"fp8_cache", {}};  // for the faults of such a cache
    AttentionProblem coded = std::get<AttentionProblem>(small.problems[4]);
    coded.cache = CacheFormat::kE4M3;
    codes.problems = {coded};
    return std::vector<Geometry>{large, small, codes};
  }();
  return all;
}

const Geometry& odd_shapes() {
  static const Geometry odd = [] {
    Geometry g{"odd", {}};
    for (const WeightFormat format :
         {WeightFormat::kFp8Block, WeightFormat::kFp8, WeightFormat::kBf16, WeightFormat::kF32})
      g.problems.emplace_back(LinearProblem{.in = 344, .out = 40, .format = format});
    for (const WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kNvfp4})
      g.problems.emplace_back(LinearProblem{.in = 320, .out = 24, .format = format, .activation = Activation::kF32});
    g.problems.emplace_back(MoeProblem{
        .hidden = 96, .experts = 5, .top_k = 2, .width = 24, .renormalise = false, .format = WeightFormat::kFp8});
    g.problems.emplace_back(
        AttentionProblem{.hidden = 72, .heads = 3, .kv_heads = 1, .head_dim = 25, .rotary_dim = 24});
    g.problems.emplace_back(AttentionProblem{
        .hidden = 72, .heads = 2, .kv_heads = 2, .head_dim = 18, .rotary_dim = 10, .activation = Activation::kF32});
    g.problems.emplace_back(GdnProblem{.hidden = 19, .key_heads = 3, .value_heads = 3, .dk = 10, .dv = 63});
    g.problems.emplace_back(
        GdnProblem{.hidden = 72, .key_heads = 1, .value_heads = 2, .dk = 24, .dv = 40, .activation = Activation::kF32});
    g.problems.emplace_back(JoinProblem{.hidden = 100, .ranks = 1, .activation = Activation::kF32});
    g.problems.emplace_back(EmbedProblem{50, 36});
    g.problems.emplace_back(SampleProblem{.vocab = 100, .usable = 97});
    return g;
  }();
  return odd;
}

}  // namespace mettle::mutants

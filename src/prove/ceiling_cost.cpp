// Bytes and operations of each op at n rows. Weights count as they lie packed (4.5 bits for nvfp4), once a launch;
// activations, caches and states once in and once out; what stays in registers and caches within a launch not at all.
#include <algorithm>
#include <cmath>

#include "ops/packed.h"
#include "prove/ceiling.h"
#include "prove/trial.h"

namespace mettle {
namespace {

struct Batching {
  double sequences, rows_each;
};
Batching batching(int rows) {
  const int sequences = std::min(rows, kTimedSequences);
  return {double(sequences), double(rows) / sequences};
}

struct Counter {
  Layout layout;
  double n;  // rows
  int rows;

  double packed(WeightFormat format, int64_t out, int64_t in) const {
    return out == 0 ? 0 : static_cast<double>(packed_bytes(layout, format, out, in));
  }
  static double size(Activation a) { return static_cast<double>(size_of(dtype_of(a))); }

  OpCost of(const EmbedProblem& p) const {
    const double h = p.hidden;  // a bf16 row of the table in, an f32 row out
    return {n * h * (2 + 4), n * h, n * h * (2 + 4)};
  }

  OpCost of(const JoinProblem& p) const {
    const double h = p.hidden, bytes = h * 4 + n * h * (4 + 4 + 4.0 * p.ranks + size(p.activation));
    return {bytes, n * h * (p.ranks + 4), bytes};  // sums; square, sum, two products
  }

  OpCost of(const LinearProblem& whole) const {
    const LinearProblem p = proved_part(whole);
    const double in = p.in, out = p.out;
    const double bytes = packed(p.format, p.out, p.in) + n * (in * size(p.activation) + out * 4);
    return {bytes, 2 * n * in * out, bytes};
  }

  OpCost of(const MoeProblem& p) const {
    const double h = p.hidden, w = p.width, s = p.shared_width, e = p.experts, k = p.top_k;
    const double expert = packed(p.format, 2 * int64_t{p.width}, p.hidden) + packed(p.format, p.hidden, p.width);
    const double shared = packed(p.shared_format, 2 * int64_t{p.shared_width}, p.hidden) +
                          packed(p.shared_format, p.shared_width == 0 ? 0 : p.hidden, p.shared_width);
    const double fixed = packed(p.router_format, p.experts + (p.shared_gate ? 1 : 0), p.hidden) + shared +
                         n * (h * size(p.activation) + h * 4 + k * 8);
    const double flops = 2 * n * h * (e + 3 * (k * w + s) + (p.shared_gate ? 1 : 0));
    return {fixed + experts_met(p.experts, p.top_k, rows) * expert, flops, fixed + e * expert};
  }

  OpCost of(const AttentionProblem& p) const {
    const auto [sequences, q] = batching(rows);
    const double h = p.hidden, heads = double(p.heads) * p.head_dim, kv = double(p.kv_heads) * p.head_dim;
    const double weights =
        packed(p.qkv_format, p.qkv_rows(), p.hidden) + packed(p.out_format, p.hidden, int64_t{p.heads} * p.head_dim);
    const auto cached = static_cast<double>(size_of(p.cache_dtype()));
    const double cache = sequences * (kTimedContext + q) * 2 * kv * cached;
    const double bytes = weights + cache + n * (h * size(p.activation) + h * 4 + 2 * kv * cached);
    const double pairs = sequences * (q * kTimedContext + q * (q + 1) / 2);  // of a row and a key that it sees
    return {bytes, 2 * n * h * (p.qkv_rows() + heads) + 4 * heads * pairs, bytes};
  }

  OpCost of(const GdnProblem& p) const {
    const auto [sequences, q] = batching(rows);
    const double h = p.hidden, v = double(p.value_heads) * p.dv, state = v * p.dk;
    const double weights = packed(p.in_format, p.channels(), p.hidden) +
                           packed(p.in_format, int64_t{p.value_heads} * p.dv, p.hidden) +
                           packed(p.ba_format, 2 * int64_t{p.value_heads}, p.hidden) +
                           packed(p.out_format, p.hidden, int64_t{p.value_heads} * p.dv);
    const double states = sequences * 2 * 4 * (state + double(p.channels()) * (p.conv - 1));
    const double bytes = weights + states + n * (h * size(p.activation) + h * 4);
    // Of a row: projections, convolution, and S decayed, read, added to, read.
    const double flops =
        2 * n * h * (p.channels() + v + 2.0 * p.value_heads + v) + n * (2.0 * p.conv * p.channels() + 7 * state);
    return {bytes, flops, bytes};
  }

  OpCost of(const SampleProblem& p) const {
    const double bytes = n * p.vocab * 4;
    return {bytes, 3.0 * n * p.usable, bytes};  // temperature, exponential, sum
  }
};

}  // namespace

double experts_met(int experts, int top_k, int rows) {
  return experts * (1 - std::pow(1 - double(top_k) / experts, rows));
}

OpCost cost_of(const AnyProblem& problem, int rows, DeviceKind kind) {
  const Counter counter{layout_of(kind), double(rows), rows};
  return std::visit([&](const auto& p) { return counter.of(p); }, problem);
}

Roof roof_of(const AnyProblem& problem, int rows, double us, const Ceiling& ceiling, const Device& device) {
  const OpCost cost = cost_of(problem, rows, device.kind);
  const Activation activation = std::visit(
      [](const auto& p) {
        if constexpr (requires { p.activation; })
          return p.activation;
        else
          return Activation::kF32;
      },
      problem);
  Roof roof{cost.bytes / us / 1e3, cost.flops / us / 1e3};
  const double gbs = ceiling.read_gbs(cost.footprint), gflops = ceiling.gflops(activation);
  const double memory_us = gbs > 0 ? cost.bytes / gbs / 1e3 : 0, math_us = gflops > 0 ? cost.flops / gflops / 1e3 : 0;
  roof.by_memory = memory_us >= math_us;
  roof.part = std::max(memory_us, math_us) / us;
  return roof;
}

}  // namespace mettle

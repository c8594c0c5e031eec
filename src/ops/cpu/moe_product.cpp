#include "ops/cpu/moe_product.h"

#include <fmt/format.h>

#include <atomic>

#include "ops/cpu/moe_route.h"

namespace mettle::cpu {
namespace {

constexpr int kRowBlock = 16;  // rows whose gate and up stay in the first-level cache until silu

// The products of routed (0) and shared (1) experts, and of the router.
struct Plan {
  Product router, gate_up[2], down[2];
  bool widen = false;

  Plan(Method method, const Tactic& tactic, const MoeProblem& p) {
    router = product_of(tactic, method, p.activation, p.router_format);
    widen = !router.bf16;
    for (int i = 0; i < 2; ++i) {
      const WeightFormat format = i == 0 ? p.format : p.shared_format;
      gate_up[i] = product_of(tactic, method, p.activation, format);
      down[i] = gate_up[i];
      if (i == 0 || p.shared_width > 0) widen |= !gate_up[i].bf16;
    }
    widen &= p.activation == Activation::kBf16;
  }
};

struct Scratch {
  float* widened = nullptr;
  float* logits = nullptr;       // [rows, experts]
  float* shared_gate = nullptr;  // [rows]: the shared expert's weight
  int32_t* all_rows = nullptr;   // [rows]: 0, 1, 2, ...
  Grouping groups;
  int32_t* active = nullptr;  // [experts]
  void* h[2] = {};            // routed [rows * top_k, width]; shared [rows, shared_width]
  uint8_t* panels = nullptr;  // two per member: gate and up
  size_t panel_stride = 0;    // of a member
};

Scratch carve(reference::Carver& c, const Plan& plan, const MoeProblem& p, int rows, int members) {
  const int64_t n = rows, pairs = n * p.top_k;
  Scratch s;
  if (plan.widen) s.widened = c.take<float>(n * p.hidden);
  s.logits = c.take<float>(n * p.experts);
  s.shared_gate = c.take<float>(n);
  s.all_rows = c.take<int32_t>(n);
  s.groups = {c.take<int32_t>(p.experts + 1), c.take<int32_t>(pairs), c.take<float>(pairs)};
  s.active = c.take<int32_t>(p.experts);
  s.h[0] = c.take<uint8_t>(pairs * p.width * (plan.down[0].bf16 ? 2 : 4));
  s.h[1] = c.take<uint8_t>(n * p.shared_width * (plan.down[1].bf16 ? 2 : 4));
  size_t panel = plan.router.panel_bytes(shape_of(p.router_format, p.experts, p.hidden));
  for (int i = 0; i < 2; ++i) {
    const WeightFormat format = i == 0 ? p.format : p.shared_format;
    const int width = i == 0 ? p.width : p.shared_width;
    if (width == 0) continue;
    panel = std::max({panel, plan.gate_up[i].panel_bytes(shape_of(format, 2 * width, p.hidden)),
                      plan.down[i].panel_bytes(shape_of(format, p.hidden, width))});
  }
  panel = (panel + 63) & ~size_t{63};
  s.panel_stride = 2 * panel;
  s.panels = c.take<uint8_t>(static_cast<int64_t>(s.panel_stride) * members);
  return s;
}

// An expert with its rows in this step.
struct Work {
  int kind = 0;  // 0 routed, 1 shared
  const PackedExpert* expert = nullptr;
  int width = 0, n = 0;
  const int32_t* row = nullptr;
  const float* weight = nullptr;
  uint8_t* h = nullptr;  // [n, width]
};

class Run {
 public:
  Run(Method method, const Tactic& tactic, const MoeArgs& a, Stream& stream)
      : a_(a),
        p_(a.problem),
        plan_(method, tactic, a.problem),
        kernels_(kernels_of(tactic.isa)),
        tactic_(tactic),
        stream_(stream),
        members_(reference::members_of(stream)) {
    reference::Carver c(a.ws);
    s_ = carve(c, plan_, p_, a.rows, members_);
    inputs_ = {a.x, s_.widened};
  }

  void operator()() {
    widen_rows(tactic_, inputs_, stream_);
    route();
    each([&](int member) { gate_up(member); });
    each([&](int member) { down(member); });
  }

 private:
  template <class F>
  void each(F&& fn) {
    if (members_ == 1) return fn(0);
    stream_.team->run(fn);
  }
  uint8_t* panel(int member) const { return s_.panels + static_cast<size_t>(member) * s_.panel_stride; }

  void route() {
    const bool gated = p_.shared_width > 0 && p_.shared_gate;
    const TileMatrix router = tile_matrix(a_.weights->router);
    each([&](int member) {
      const InRows in = inputs_.rows(plan_.router, a_.rows);
      if (!a_.selection.given)
        multiply_tiles(plan_.router, router, share_of(router.tiles, member, members_), panel(member), in,
                       {s_.logits, p_.experts});
      if (gated && member == members_ - 1)
        multiply_tiles(plan_.router, tile_matrix(a_.weights->shared_gate), {0, 1}, panel(member), in,
                       {s_.shared_gate, 1});
    });
    if (!a_.selection.given) {
      const auto select = [&](int64_t r) {
        select_experts(p_, s_.logits + r * p_.experts, a_.selection.ids + r * p_.top_k,
                       a_.selection.weights + r * p_.top_k);
      };
      if (a_.rows * p_.experts < 2048) {  // cheaper than waking the team
        for (int r = 0; r < a_.rows; ++r) select(r);
      } else {
        reference::for_each(stream_, a_.rows, select);
      }
    }
    for (int r = 0; r < a_.rows; ++r) s_.all_rows[r] = r;
    if (gated) {
      kernels_.sigmoid(s_.shared_gate, s_.shared_gate, a_.rows);
    } else {
      std::fill_n(s_.shared_gate, a_.rows, 1.f);
    }
    group_by_expert(p_, a_.rows, a_.selection.ids, a_.selection.weights, s_.groups);
    for (int e = 0; e < p_.experts; ++e)
      if (s_.groups.first[e + 1] > s_.groups.first[e]) s_.active[active_++] = e;
  }

  // The i-th expert of this step: active ones in ascending order, then the shared one.
  int works() const { return active_ + (p_.shared_width > 0 ? 1 : 0); }
  Work work(int i) const {
    if (i == active_)
      return {1,
              &a_.weights->shared,
              p_.shared_width,
              a_.rows,
              s_.all_rows,
              s_.shared_gate,
              static_cast<uint8_t*>(s_.h[1])};
    const int e = s_.active[i];
    const int32_t first = s_.groups.first[e];
    const int64_t h_bytes = int64_t{p_.width} * (plan_.down[0].bf16 ? 2 : 4);
    return {0,
            &a_.weights->experts[static_cast<size_t>(e)],
            p_.width,
            s_.groups.first[e + 1] - first,
            s_.groups.row + first,
            s_.groups.weight + first,
            static_cast<uint8_t*>(s_.h[0]) + first * h_bytes};
  }
  // Estimated cycles of one gate tile and its up tile: weights by their bytes, rows by their products.
  int64_t tile_cost(const Work& w) const {
    const PackedMatrix& m = w.expert->gate_up;
    return 1 + m.tile_bytes() / 8 + m.cols / 2 * w.n;
  }

  int pieces() const { return pieces_of(a_.rows, members_); }

  // One flat list of the tiles of all experts, cut into equal costs.
  void gate_up(int member) {
    int64_t total = 0;
    for (int i = 0; i < works(); ++i) total += tile_cost(work(i)) * (work(i).width / 16);
    each_piece(next_gate_up_, pieces(), member, members_,
               [&](int piece) { gate_up(share_of(total, piece, pieces()), member); });
  }
  void gate_up(Span mine, int member) {
    int64_t before = 0;
    for (int i = 0; i < works(); ++i) {
      const Work w = work(i);
      const int64_t cost = tile_cost(w), tiles = w.width / 16;
      const auto tile_at = [&](int64_t x) { return std::clamp<int64_t>((x - before + cost - 1) / cost, 0, tiles); };
      const Span span{mine.begin <= before ? 0 : tile_at(mine.begin), mine.end <= before ? 0 : tile_at(mine.end)};
      if (span.begin < span.end) {
        if (i + 1 < works()) prefetch_tile(tile_matrix(work(i + 1).expert->gate_up), 0);
        gate_up_tiles(w, span, member);
      }
      before += cost * tiles;
    }
  }

  void gate_up_tiles(const Work& w, Span tiles, int member) {
    const Product& product = plan_.gate_up[w.kind];
    const ProductKernel& k = *product.kernel;
    const TileMatrix m = tile_matrix(w.expert->gate_up);
    const int64_t up = w.width / 16;  // first tile of up
    uint8_t* panels[2] = {panel(member), panel(member) + s_.panel_stride / 2};
    const bool as_bf16 = plan_.down[w.kind].bf16, rounded = p_.activation == Activation::kBf16;
    alignas(64) float values[2][kRowBlock * kMostTiles * 16];
    // Without panels the chunk is as long as the values of its rows allow: long runs through memory for few rows.
    const int chunk = k.prepare != nullptr ? k.chunk_tiles : kRowBlock * kMostTiles / std::min(w.n, kRowBlock);
    for (int64_t t = tiles.begin; t < tiles.end; t += chunk) {
      const int count = static_cast<int>(std::min<int64_t>(chunk, tiles.end - t));
      const int columns = count * 16;
      if (k.prepare != nullptr) {
        k.prepare(m, t, count, panels[0]);
        k.prepare(m, up + t, count, panels[1]);
      }
      for (int first = 0; first < w.n; first += kRowBlock) {
        const int n = std::min(kRowBlock, w.n - first);
        const InRows in = inputs_.rows(product, n, w.row + first);
        if (first == 0) prefetch_tile(m, up + t);
        k.multiply(m, t, count, panels[0], in, {.y = values[0], .stride = columns, .first_tile = t});
        k.multiply(m, up + t, count, panels[1], in, {.y = values[1], .stride = columns, .first_tile = up + t});
        for (int i = 0; i < n; ++i)
          kernels_.silu_mul(values[0] + i * columns, values[1] + i * columns,
                            w.h + (int64_t{first + i} * w.width + t * 16) * (as_bf16 ? 2 : 4), columns, rounded,
                            as_bf16);
      }
    }
  }

  void down(int member) {
    each_piece(next_down_, pieces(), member, members_,
               [&](int piece) { down(share_of((p_.hidden + 15) / 16, piece, pieces()), member); });
  }
  void down(Span tiles, int member) {
    const int64_t first = tiles.begin * 16, last = std::min<int64_t>(tiles.end * 16, p_.hidden);
    if (first >= last) return;
    float* partial = a_.partial.as<float>();
    for (int r = 0; r < a_.rows; ++r)
      std::fill(partial + int64_t{r} * p_.hidden + first, partial + int64_t{r} * p_.hidden + last, 0.f);
    for (int i = 0; i < works(); ++i) {
      const Work w = work(i);
      if (i + 1 < works()) prefetch_tile(tile_matrix(work(i + 1).expert->down), tiles.begin);
      multiply_tiles(plan_.down[w.kind], tile_matrix(w.expert->down), tiles, panel(member),
                     {w.h, w.width, nullptr, w.n},
                     {.y = partial, .stride = p_.hidden, .index = w.row, .weight = w.weight});
    }
  }

  static constexpr int kMostTiles = 4;  // of a chunk at kRowBlock rows
  const MoeArgs& a_;
  const MoeProblem& p_;
  Plan plan_;
  const Kernels& kernels_;
  const Tactic& tactic_;
  Stream& stream_;
  int members_;
  Scratch s_;
  Inputs inputs_;
  int active_ = 0;
  std::atomic<int> next_gate_up_{0}, next_down_{0};
};

}  // namespace

Verdict moe_supports(const MoeProblem& p, const Device& device) {
  for (const int width : {p.width, p.shared_width})
    if (width % 16 != 0)
      return refuse(VerdictCode::kShapeUnsupported, fmt::format("expert width {}", width), "a multiple of 16");
  if (p.top_k < 1 || p.top_k > p.experts)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("top-{} of {} experts", p.top_k, p.experts),
                  "1 <= top-k <= experts");
  return cpu_supports(
      device, {{p.format, p.hidden}, {p.format, p.width}, {p.router_format, p.hidden}, {p.shared_format, p.hidden}});
}

size_t moe_workspace(Method method, const Tactic& tactic, const MoeProblem& p, int rows, int members) {
  reference::Carver c({});
  carve(c, Plan(method, tactic, p), p, rows, members);
  return c.used();
}

void moe_run(Method method, const Tactic& tactic, const MoeArgs& a, Stream& stream) {
  Run(method, tactic, a, stream)();
}

}  // namespace mettle::cpu

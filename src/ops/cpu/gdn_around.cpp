#include "ops/cpu/gdn_around.h"

#include <fmt/format.h>

#include <cstring>

namespace mettle::cpu {
namespace {

constexpr int kChannels = 64;  // of a convolution block

struct Plan {
  Product in, ba, out;
  Plan(const Tactic& t, const GdnProblem& p)
      : in(product_of(t, method_of(t), p.activation, p.in_format)),
        ba(product_of(t, method_of(t), p.activation, p.ba_format)),
        out(product_of(t, method_of(t), p.activation, p.out_format)) {}
};

struct Scratch {
  float* widened = nullptr;
  float *qkv = nullptr, *z = nullptr, *ba = nullptr;
  float* conv = nullptr;                    // [rows, channels] after silu, q and k normalised
  float *decay = nullptr, *beta = nullptr;  // [rows, value_heads]
  float* read = nullptr;                    // [rows, value_heads * dv]
  void* core = nullptr;                     // the same as the output product reads it
  uint8_t* panels = nullptr;
  float* own = nullptr;  // of the recurrence, per member
  size_t panel_stride = 0, own_stride = 0;
};

Scratch carve(reference::Carver& c, const Plan& plan, const GdnProblem& p, int rows, int members, size_t own_floats) {
  const int64_t n = rows, values = int64_t{p.value_heads} * p.dv;
  Scratch s;
  if ((!plan.in.bf16 || !plan.ba.bf16) && p.activation == Activation::kBf16) s.widened = c.take<float>(n * p.hidden);
  s.qkv = c.take<float>(n * p.channels());
  s.z = c.take<float>(n * values);
  s.ba = c.take<float>(n * 2 * p.value_heads);
  s.conv = c.take<float>(n * p.channels());
  s.decay = c.take<float>(n * p.value_heads);
  s.beta = c.take<float>(n * p.value_heads);
  s.read = c.take<float>(n * values);
  s.core = c.take<uint8_t>(n * values * (plan.out.bf16 ? 2 : 4));
  s.panel_stride = std::max({plan.in.panel_bytes(shape_of(p.in_format, p.channels(), p.hidden)),
                             plan.ba.panel_bytes(shape_of(p.ba_format, 2 * p.value_heads, p.hidden)),
                             plan.out.panel_bytes(shape_of(p.out_format, p.hidden, values))});
  s.panel_stride = (s.panel_stride + 63) & ~size_t{63};
  s.panels = c.take<uint8_t>(static_cast<int64_t>(s.panel_stride) * members);
  s.own_stride = (own_floats + 15) & ~size_t{15};
  s.own = c.take<float>(static_cast<int64_t>(s.own_stride) * members);
  return s;
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

class Run {
 public:
  Run(const Recurrence& recurrence, const Tactic& tactic, const GdnArgs& a, Stream& stream)
      : recurrence_(recurrence),
        a_(a),
        p_(a.problem),
        plan_(tactic, a.problem),
        kernels_(kernels_of(tactic.isa)),
        tactic_(tactic),
        stream_(stream),
        members_(reference::members_of(stream)) {
    reference::Carver c(a.ws);
    s_ = carve(c, plan_, p_, a.batch->rows, members_, recurrence.own_floats(p_));
  }

  void operator()() {
    const int64_t rows = a_.batch->rows, sequences = std::ssize(a_.batch->sequences);
    const int64_t values = int64_t{p_.value_heads} * p_.dv, blocks = (p_.channels() + kChannels - 1) / kChannels;
    project();
    reference::for_each(stream_, sequences * blocks, [&](int64_t item) {
      convolve(a_.batch->sequences[static_cast<size_t>(item / blocks)], static_cast<int>(item % blocks) * kChannels);
    });
    reference::for_each(stream_, rows, [&](int64_t row) { gates_and_norms(row); });
    const auto recurs = [&](int member) {
      const Span items = share_of(sequences * p_.value_heads, member, members_);
      for (int64_t item = items.begin; item < items.end; ++item)
        recur(a_.batch->sequences[static_cast<size_t>(item / p_.value_heads)], static_cast<int>(item % p_.value_heads),
              member);
    };
    if (members_ == 1) {
      recurs(0);
    } else {
      stream_.team->run(recurs);
    }
    multiply(plan_.out, tile_matrix(a_.weights->out), s_.panels, s_.panel_stride,
             own_rows(s_.core, values, static_cast<int>(rows)), {a_.partial.as<float>(), p_.hidden}, stream_);
  }

 private:
  void project() {
    const int rows = a_.batch->rows;
    const Inputs inputs{a_.x, s_.widened};
    widen_rows(tactic_, inputs, stream_);
    const auto work = [&](int member) {
      const auto part = [&](const Product& product, const PackedMatrix& m, float* y) {
        const TileMatrix t = tile_matrix(m);
        multiply_tiles(product, t, share_of(t.tiles, member, members_),
                       s_.panels + static_cast<size_t>(member) * s_.panel_stride, inputs.rows(product, rows),
                       {y, m.rows});
      };
      part(plan_.in, a_.weights->qkv, s_.qkv);
      part(plan_.in, a_.weights->z, s_.z);
      part(plan_.ba, a_.weights->ba, s_.ba);
    };
    if (members_ == 1) return work(0);
    stream_.team->run(work);
  }

  // Channels first..first + 64 of one sequence; the last rows before the convolution stay in conv_state.
  void convolve(const BatchSequence& s, int first) const {
    constexpr int kTaps = 4;
    const int n = std::min(kChannels, p_.channels() - first);
    alignas(64) float taps[kTaps][kChannels] = {}, past[kTaps - 1][kChannels] = {}, now[kChannels] = {}, sum[kChannels];
    const int64_t slot = int64_t{p_.channels()} * (kTaps - 1);
    const float* from = a_.conv_state.as<float>() + s.state_in * slot;
    float* to = a_.conv_state.as<float>() + s.state_out * slot;
    for (int c = 0; c < n; ++c) {
      for (int j = 0; j < kTaps; ++j) taps[j][c] = a_.weights->conv[static_cast<size_t>((first + c) * kTaps + j)];
      for (int j = 0; j + 1 < kTaps; ++j) past[j][c] = s.state_in < 0 ? 0.f : from[(first + c) * (kTaps - 1) + j];
    }
    for (int64_t row = s.first_row; row < s.first_row + s.q_len; ++row) {
      std::memcpy(now, s_.qkv + row * p_.channels() + first, static_cast<size_t>(n) * sizeof(float));
      for (int c = 0; c < kChannels; ++c)
        sum[c] = ((taps[0][c] * past[0][c] + taps[1][c] * past[1][c]) + taps[2][c] * past[2][c]) + taps[3][c] * now[c];
      kernels_.silu(sum, s_.conv + row * p_.channels() + first, n);
      std::memcpy(past[0], past[1], sizeof past[0]);
      std::memcpy(past[1], past[2], sizeof past[1]);
      std::memcpy(past[2], now, sizeof now);
    }
    for (int c = 0; c < n; ++c)
      for (int j = 0; j + 1 < kTaps; ++j) to[(first + c) * (kTaps - 1) + j] = past[j][c];
  }

  void gates_and_norms(int64_t row) const {
    const float q_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p_.dk)));
    for (int h = 0; h < 2 * p_.key_heads; ++h) {
      float* head = s_.conv + row * p_.channels() + int64_t{h} * p_.dk;
      const float inverse = 1.f / std::sqrt(kernels_.dot(head, head, p_.dk) + 1e-6f);
      const float scale = h < p_.key_heads ? q_scale : 1.f;
      for (int i = 0; i < p_.dk; ++i) head[i] = head[i] * inverse * scale;
    }
    const float* b = s_.ba + row * 2 * p_.value_heads;
    kernels_.sigmoid(b, s_.beta + row * p_.value_heads, p_.value_heads);
    for (int h = 0; h < p_.value_heads; ++h) {
      const auto i = static_cast<size_t>(h);
      s_.decay[row * p_.value_heads + h] =
          std::exp(-std::exp(a_.weights->a_log[i]) * softplus(b[p_.value_heads + h] + a_.weights->dt_bias[i]));
    }
  }

  void recur(const BatchSequence& s, int head, int member) const {
    const int64_t head_state = int64_t{p_.dk} * p_.dv, slot = p_.value_heads * head_state,
                  values = int64_t{p_.value_heads} * p_.dv;
    float* state = a_.state.as<float>() + s.state_out * slot + head * head_state;
    if (s.state_in < 0) {
      std::fill_n(state, head_state, 0.f);
    } else if (s.state_in != s.state_out) {
      std::copy_n(a_.state.as<float>() + s.state_in * slot + head * head_state, head_state, state);
    }
    const float* row = s_.conv + int64_t{s.first_row} * p_.channels();
    const int64_t key = int64_t{head / (p_.value_heads / p_.key_heads)} * p_.dk, keys = int64_t{p_.key_heads} * p_.dk;
    const int64_t first = s.first_row;
    recurrence_.delta(kernels_, {.rows = s.q_len,
                                 .dk = p_.dk,
                                 .dv = p_.dv,
                                 .q = row + key,
                                 .k = row + keys + key,
                                 .v = row + 2 * keys + int64_t{head} * p_.dv,
                                 .row_stride = p_.channels(),
                                 .decay = s_.decay + first * p_.value_heads + head,
                                 .beta = s_.beta + first * p_.value_heads + head,
                                 .gate_stride = p_.value_heads,
                                 .state = state,
                                 .out = s_.read + first * values + int64_t{head} * p_.dv,
                                 .out_stride = values,
                                 .scratch = s_.own + static_cast<size_t>(member) * s_.own_stride});
    for (int64_t r = first; r < first + s.q_len; ++r) {
      const int64_t at = r * values + int64_t{head} * p_.dv;
      float* o = s_.read + at;
      const float scale = 1.f / std::sqrt(kernels_.dot(o, o, p_.dv) / static_cast<float>(p_.dv) + p_.eps);
      for (int i = 0; i < p_.dv; ++i) o[i] = o[i] * scale * a_.weights->norm[static_cast<size_t>(i)];
      kernels_.silu_mul(s_.z + at, o, static_cast<uint8_t*>(s_.core) + at * (plan_.out.bf16 ? 2 : 4), p_.dv,
                        p_.activation == Activation::kBf16, plan_.out.bf16);
    }
  }

  const Recurrence& recurrence_;
  const GdnArgs& a_;
  const GdnProblem& p_;
  Plan plan_;
  const Kernels& kernels_;
  const Tactic& tactic_;
  Stream& stream_;
  int members_;
  Scratch s_;
};

}  // namespace

Verdict gdn_supports(const GdnProblem& p, const Device& device) {
  if (p.key_heads < 1 || p.value_heads < 1 || p.value_heads % p.key_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported,
                  fmt::format("{} value heads, {} key heads", p.value_heads, p.key_heads), "a multiple");
  if (p.conv != 4) return refuse(VerdictCode::kShapeUnsupported, fmt::format("convolution of {}", p.conv), "4");
  return cpu_supports(
      device, {{p.in_format, p.hidden}, {p.ba_format, p.hidden}, {p.out_format, int64_t{p.value_heads} * p.dv}});
}

size_t gdn_workspace(const Recurrence& recurrence, const Tactic& tactic, const GdnProblem& p, int rows, int members) {
  reference::Carver c({});
  carve(c, Plan(tactic, p), p, rows, members, recurrence.own_floats(p));
  return c.used();
}

void gdn_run(const Recurrence& recurrence, const Tactic& tactic, const GdnArgs& args, Stream& stream) {
  Run(recurrence, tactic, args, stream)();
}

}  // namespace mettle::cpu

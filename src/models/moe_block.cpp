#include "models/moe_block.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace mettle {
namespace {

constexpr int64_t kWidthUnit = 16;  // of a cut: the block of a scale, and the tile of a packed matrix

}  // namespace

MoeBlock::MoeBlock(const MoeShape& shape, const BlockContext& context, std::string module, WeightReader& plan)
    : shape_(shape), context_(context), module_(std::move(module)) {
  const ModelOptions& o = context.options;
  names_ = plan.has(module_ + ".experts.0.gate_proj") ? Names::kPerExpert : Names::kFused;
  // The down projection is cut by columns, so its format decides where; all experts are cut alike.
  width_ = {0, shape.width};
  shared_width_ = {0, shape.shared_width};
  RawExpert fused = read_fused(plan);
  const WeightFormat down = format_of(read_expert(plan, 0, fused).down);
  width_ = cut_blocks(module_ + ".experts", shape.width, std::max(kWidthUnit, column_unit(down)), o.rank, o.ranks,
                      Share::kAtLeastOneBlock);
  const RawExpert first = read_expert(plan, 0, fused);
  problem_ = {.hidden = context.hidden,
              .experts = shape.experts,
              .top_k = shape.top_k,
              .width = static_cast<int>(width_.size()),
              .renormalise = shape.renormalise,
              .format = format_of_expert(first),
              .router_format = format_of(read_router(plan)),
              .activation = o.activation};
  for (int e = 0; e < shape.experts; ++e) {
    const RawExpert raw = read_expert(plan, e, fused);
    if (format_of_expert(raw) != problem_.format)
      fail(Code::kUnsupported,
           fmt::format("{}: all experts of a layer must have one format, expert {} is {}, expert 0 {}", module_, e,
                       name_of(format_of_expert(raw)), name_of(problem_.format)));
    count_bytes(bytes_, context_.layout(), raw.gate_up);
    count_bytes(bytes_, context_.layout(), raw.down);
  }
  count_bytes(bytes_, context_.layout(), read_router(plan));
  if (shape.shared_width == 0) return;
  const WeightFormat shared_down = format_of(read_shared(plan).down);
  shared_width_ = cut_blocks(module_ + ".shared_expert", shape.shared_width,
                             std::max(kWidthUnit, column_unit(shared_down)), o.rank, o.ranks, Share::kMayBeEmpty);
  problem_.shared_width = static_cast<int>(shared_width_.size());
  if (problem_.shared_width == 0) return;
  const RawExpert shared = read_shared(plan);
  problem_.shared_gate = true;
  problem_.shared_format = format_of_expert(shared);
  if (format_of(read_shared_gate(plan)) != problem_.router_format)
    fail(Code::kUnsupported, fmt::format("{}.shared_expert_gate: must have the router's format, {}", module_,
                                         name_of(problem_.router_format)));
  count_bytes(bytes_, context_.layout(), shared.gate_up);
  count_bytes(bytes_, context_.layout(), shared.down);
  count_bytes(bytes_, context_.layout(), read_shared_gate(plan));
}

WeightFormat MoeBlock::format_of_expert(const RawExpert& raw) const {
  RawSegments all = raw.gate_up;
  all.insert(all.end(), raw.down.begin(), raw.down.end());
  return format_of(all);
}

RawExpert MoeBlock::read_fused(WeightReader& reader) const {
  RawExpert raw;
  if (names_ == Names::kPerExpert) return raw;
  const int64_t e = shape_.experts, w = shape_.width, h = context_.hidden;
  raw.gate_up.push_back(reader.matrix(module_ + ".experts.gate_up_proj", e * 2 * w, h));
  raw.down.push_back(reader.matrix(module_ + ".experts.down_proj", e * h, w));
  return raw;
}

RawExpert MoeBlock::read_expert(WeightReader& reader, int expert, const RawExpert& fused) const {
  const int64_t w = shape_.width, h = context_.hidden;
  RawExpert raw;
  if (names_ == Names::kFused) {
    const int64_t gate = expert * 2 * w, up = gate + w;
    raw.gate_up.push_back(keep_rows(fused.gate_up[0], {gate + width_.begin, gate + width_.end}));
    raw.gate_up.push_back(keep_rows(fused.gate_up[0], {up + width_.begin, up + width_.end}));
    raw.down.push_back(keep_cols(keep_rows(fused.down[0], {expert * h, (expert + 1) * h}), width_));
    return raw;
  }
  const std::string name = fmt::format("{}.experts.{}", module_, expert);
  raw.gate_up.push_back(keep_rows(reader.matrix(name + ".gate_proj", w, h), width_));
  raw.gate_up.push_back(keep_rows(reader.matrix(name + ".up_proj", w, h), width_));
  raw.down.push_back(keep_cols(reader.matrix(name + ".down_proj", h, w), width_));
  return raw;
}

RawExpert MoeBlock::read_shared(WeightReader& reader) const {
  const int64_t w = shape_.shared_width, h = context_.hidden;
  const std::string name = module_ + ".shared_expert";
  RawExpert raw;
  raw.gate_up.push_back(keep_rows(reader.dense(name + ".gate_proj", w, h), shared_width_));
  raw.gate_up.push_back(keep_rows(reader.dense(name + ".up_proj", w, h), shared_width_));
  raw.down.push_back(keep_cols(reader.dense(name + ".down_proj", h, w), shared_width_));
  return raw;
}

RawSegments MoeBlock::read_router(WeightReader& reader) const {
  return {reader.matrix(module_ + ".gate", shape_.experts, context_.hidden)};
}

RawSegments MoeBlock::read_shared_gate(WeightReader& reader) const {
  return {reader.matrix(module_ + ".shared_expert_gate", 1, context_.hidden)};
}

void MoeBlock::add_bytes(WeightBytes& bytes) const {
  for (size_t f = 0; f < bytes.by_format.size(); ++f) bytes.by_format[f] += bytes_.by_format[f];
}

size_t MoeBlock::workspace(const StepLimits& limits) const {
  return choices_.workspace(problem_, limits.rows, limits.team_members);
}

// As many experts at a time as there are threads, so that the transient is one expert a thread whatever the model.
void MoeBlock::load(WeightReader& reader, Place& place) {
  const Layout layout = context_.layout();
  const RawExpert fused = read_fused(reader);
  weights_.experts.reserve(static_cast<size_t>(shape_.experts));
  const int at_a_time = reader.team() == nullptr ? 1 : reader.team()->members();
  for (int first = 0; first < shape_.experts; first += at_a_time) {
    std::vector<PackedExpert> packed(static_cast<size_t>(std::min(at_a_time, shape_.experts - first)));
    share_out(reader.team(), std::ssize(packed), [&](int64_t begin, int64_t end) {
      WeightReader alone = reader.alone();
      for (int64_t i = begin; i < end; ++i)
        packed[static_cast<size_t>(i)] = pack_expert(layout, read_expert(alone, first + static_cast<int>(i), fused));
    });
    for (const PackedExpert& expert : packed) weights_.experts.push_back(place_expert(expert, place));
    if (names_ == Names::kPerExpert) reader.release();
  }
  RawMoe raw;  // read behind the last release before it is packed: dummy weights live until then only
  raw.router = read_router(reader);
  if (shape_.shared_width > 0) {
    // A rank without a share of it still reads it: every tensor of the file is accounted for.
    const RawExpert shared = read_shared(reader);
    const RawSegments gate = read_shared_gate(reader);
    if (problem_.shared_width > 0) {
      weights_.shared = pack_expert(layout, shared);
      raw.shared_gate = gate;
    }
  }
  pack_router(layout, raw, weights_);
  place_moe(weights_, place);
  reader.release();
}

void MoeBlock::run(const TensorView& x, const TensorView& partial, Selection selection, Workspace ws,
                   Stream& stream) const {
  const int rows = static_cast<int>(x.shape[0]);
  const MoeArgs args{.problem = problem_,
                     .rows = rows,
                     .x = x,
                     .weights = &weights_,
                     .partial = partial,
                     .selection = selection,
                     .ws = ws};
  run_op(choices_.at(rows), args, stream);
}

}  // namespace mettle

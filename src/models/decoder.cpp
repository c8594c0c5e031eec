#include "models/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <variant>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/finite.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

// The first of the candidates that the checkpoint has.
std::string find_module(const WeightReader& reader, const std::vector<std::string>& candidates, const char* tail) {
  std::string looked;
  for (const std::string& c : candidates) {
    if (reader.has(c + tail)) return c;
    looked += (looked.empty() ? "" : ", ") + c + tail;
  }
  fail(Code::kBadModel, "checkpoint: must have one of " + looked + ", has none of them");
}

size_t aligned(size_t bytes) { return (bytes + Arena::kAlign - 1) & ~(Arena::kAlign - 1); }

// A table of BF16 rows, owned.
Buffer copy_table(const RawMatrix& table, ThreadTeam& team) {
  Buffer buffer(static_cast<size_t>(table.rows * table.cols) * sizeof(uint16_t));
  auto* out = buffer.as<uint16_t>();
  share_out(&team, table.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t* row = table.data + r * table.row_bytes;
      if (table.format == WeightFormat::kBf16) {
        std::memcpy(out + r * table.cols, row, static_cast<size_t>(table.cols) * sizeof(uint16_t));
        continue;
      }
      for (int64_t k = 0; k < table.cols; ++k) {
        float value;
        std::memcpy(&value, row + k * 4, sizeof value);
        out[r * table.cols + k] = float_to_bf16(value);
      }
    }
  });
  return buffer;
}

// Places of a step in the order they are computed: embed, [join, mixer, join, moe] of each layer, join, head.
constexpr int32_t kEmbedPlace = 0, kPlacesOfALayer = 4;

template <class Op>
OpPlace place(const Choices<Op>& choices, int rows, std::string where) {
  const Choice<Op>& c = choices.at(rows);
  return {Op::kName, std::move(where), std::string(c.backend->name), c.tactic.name};
}

template <class Op>
OpPlace place_in(const Choices<Op>& choices, int rows, size_t layer) {
  return place(choices, rows, fmt::format("of layer {}", layer));
}

struct Layer {
  FloatArray input_norm, post_norm;
  std::variant<AttentionBlock, GdnBlock> mixer;
  MoeBlock moe;
};

class Decoder : public Model {
 public:
  Decoder(DecoderSpec spec, WeightSource& source, const ModelOptions& options);

  const ModelInfo& info() const override { return spec_.info; }
  std::span<const CacheEntry> caches() const override { return cache_list_; }
  std::vector<AnyProblem> problems() const override;
  WeightBytes weight_bytes() const override { return bytes_; }
  void choose(ChoiceSource& choices) override;
  size_t scratch_bytes(const StepLimits& limits) const override;
  void load(WeightSource& source, Place& place, const std::function<void(int64_t)>& on_progress) override;
  void ready(const StepLimits& limits, std::vector<TensorView> caches, Comm& comm) override;
  std::span<uint8_t> scratch() override { return scratch_memory_; }
  void forward(const Step& step, Stream& stream) override;
  OpPlace place_of(int32_t mark, int rows, int logit_rows) const override;

 private:
  JoinProblem join_problem(int ranks) const;
  RawSegments read_head(WeightReader& reader) const;
  RawMatrix read_embedding(WeightReader& reader) const;
  std::string layer_name(size_t layer) const { return fmt::format("{}layers.{}", prefix_, layer); }
  size_t workspace_bytes(const StepLimits& limits) const;
  DType x_dtype() const { return dtype_of(options_.activation); }
  int partial_buffers() const { return options_.ranks == 1 ? 1 : Comm::kBuffers; }

  void join(int rows, int pending, const FloatArray& weight, Stream& stream);
  // Marks the rows of an op's output that are not finite, if the step asks for it. rows: which of the step's; null:
  // all.
  void look(const Step& step, const TensorView& output, int32_t place, Stream& stream,
            const int32_t* rows = nullptr) const;
  int32_t last_join_place() const { return kEmbedPlace + 1 + kPlacesOfALayer * static_cast<int32_t>(layers_.size()); }
  void head(const Step& step, Stream& stream);
  TensorView rows_of_x(int rows) const { return view_of(x_, x_dtype(), {rows, spec_.info.hidden}); }
  TensorView partial(int buffer, int rows) const {
    return view_of(partials_[static_cast<size_t>(buffer)], DType::kF32, {rows, spec_.info.hidden});
  }

  DecoderSpec spec_;
  ModelOptions options_;
  std::string prefix_, head_name_;
  Range vocab_;  // rows of the head on this rank
  EmbedProblem embed_problem_;
  LinearProblem head_problem_;
  std::vector<Layer> layers_;
  std::vector<CacheEntry> cache_list_;
  WeightBytes bytes_;

  Choices<EmbedOp> embed_choices_;
  Choices<JoinOp> first_join_choices_, join_choices_;
  Choices<LinearOp> head_choices_;

  Place* place_ = nullptr;
  Buffer embedding_memory_;  // on a CPU
  void* embedding_ = nullptr;
  FloatArray final_norm_;
  PackedMatrix head_;

  StepLimits limits_;
  std::span<uint8_t> scratch_memory_;
  std::unique_ptr<Arena> scratch_;
  std::vector<TensorView> caches_;
  Comm* comm_ = nullptr;
  float* residual_ = nullptr;
  void *x_ = nullptr, *head_x_ = nullptr;
  std::array<float*, Comm::kBuffers> partials_{};
  float* head_y_ = nullptr;  // this rank's columns of the logits, when there are several ranks
  Selection selection_;
  Workspace ws_;
};

Decoder::Decoder(DecoderSpec spec, WeightSource& source, const ModelOptions& options)
    : spec_(std::move(spec)), options_(options) {
  spec_.info.cut_ranks = options.ranks;
  WeightReader plan(source, WeightReader::Mode::kPlan, options.dense);
  for (const auto& [prefix, why] : spec_.ignored) plan.ignore(prefix, why);
  prefix_ = find_module(plan, spec_.prefixes, "embed_tokens");
  head_name_ = spec_.tied_head ? prefix_ + "embed_tokens" : find_module(plan, spec_.heads, "");
  if (spec_.tied_head)
    for (const std::string& name : spec_.heads) plan.ignore(name, "tied to the embedding");

  const ModelInfo& info = spec_.info;
  vocab_ = cut_blocks("vocabulary", info.vocab, 16, options.rank, options.ranks, Share::kAtLeastOneBlock);
  embed_problem_ = {.vocab = info.vocab, .hidden = info.hidden};
  const RawSegments head = read_head(plan);
  head_problem_ = {.in = info.hidden,
                   .out = static_cast<int>(vocab_.size()),
                   .format = format_of(head),
                   .activation = options.activation};
  read_embedding(plan);
  bytes_.by_format[static_cast<size_t>(WeightFormat::kBf16)] += int64_t{info.vocab} * info.hidden * 2;
  count_bytes(bytes_, layout_of(options.device), head);

  const BlockContext context{
      .hidden = info.hidden, .eps = spec_.eps, .norm_plus_one = spec_.norm_plus_one, .options = options};
  layers_.reserve(spec_.layers.size());
  for (size_t l = 0; l < spec_.layers.size(); ++l) {
    const std::string name = layer_name(l);
    plan.vector(name + ".input_layernorm.weight", {info.hidden});
    plan.vector(name + ".post_attention_layernorm.weight", {info.hidden});
    const auto mixer = [&]() -> std::variant<AttentionBlock, GdnBlock> {
      if (spec_.layers[l] == Mixer::kAttention)
        return AttentionBlock(spec_.attention, context, name + ".self_attn", plan);
      return GdnBlock(spec_.gdn, context, name + ".linear_attn", plan);
    };
    layers_.push_back({{}, {}, mixer(), MoeBlock(spec_.moe, context, name + ".mlp", plan)});
    std::visit(
        [&](auto& block) {
          block.add_caches(static_cast<int>(l), cache_list_);
          block.add_bytes(bytes_);
        },
        layers_.back().mixer);
    layers_.back().moe.add_bytes(bytes_);
    if (const auto* attention = std::get_if<AttentionBlock>(&layers_.back().mixer)) {
      ++spec_.info.attention_layers;
      spec_.info.scaled_layers += attention->has_scales() ? 1 : 0;
    }
  }
  plan.vector(prefix_ + "norm.weight", {info.hidden});
  spec_.info.requantised = static_cast<int>(plan.requantised().size());
  bytes_.by_format[static_cast<size_t>(WeightFormat::kF32)] +=
      static_cast<int64_t>((2 * layers_.size() + 1) * static_cast<size_t>(info.hidden) * sizeof(float));
}

JoinProblem Decoder::join_problem(int ranks) const {
  return {.hidden = spec_.info.hidden,
          .ranks = ranks,
          .plus_one = spec_.norm_plus_one,
          .eps = spec_.eps,
          .activation = options_.activation};
}

std::vector<AnyProblem> Decoder::problems() const {
  std::vector<AnyProblem> all;
  const auto add = [&](const auto& problem) {
    if (std::find(all.begin(), all.end(), AnyProblem(problem)) == all.end()) all.emplace_back(problem);
  };
  add(embed_problem_);
  add(join_problem(0));
  add(join_problem(options_.ranks));
  for (const Layer& layer : layers_) {
    std::visit([&](const auto& block) { add(block.problem()); }, layer.mixer);
    add(layer.moe.problem());
  }
  add(head_problem_);
  return all;
}

void Decoder::choose(ChoiceSource& choices) {
  embed_choices_ = choices.choose(embed_problem_);
  first_join_choices_ = choices.choose(join_problem(0));
  join_choices_ = choices.choose(join_problem(options_.ranks));
  head_choices_ = choices.choose(head_problem_);
  for (Layer& layer : layers_) {
    std::visit([&](auto& block) { block.choose(choices); }, layer.mixer);
    layer.moe.choose(choices);
  }
}

RawSegments Decoder::read_head(WeightReader& reader) const {
  return {keep_rows(reader.dense(head_name_, spec_.info.vocab, spec_.info.hidden), vocab_)};
}

RawMatrix Decoder::read_embedding(WeightReader& reader) const {
  RawMatrix table = reader.matrix(prefix_ + "embed_tokens", spec_.info.vocab, spec_.info.hidden);
  if (table.format != WeightFormat::kBf16 && table.format != WeightFormat::kF32)
    fail(Code::kUnsupported, fmt::format("{}: must be bf16 or f32, is {}", table.name, name_of(table.format)));
  return table;
}

void Decoder::load(WeightSource& source, Place& place, const std::function<void(int64_t)>& on_progress) {
  place_ = &place;
  ThreadTeam team(usable_cores());
  WeightReader reader(source, WeightReader::Mode::kLoad, options_.dense, &team);
  const int64_t parts = std::ssize(layers_) + 1;
  const auto progress = [&](int64_t part) {
    if (on_progress) on_progress(bytes_.total() * part / parts);
  };
  const auto norm = [&](const std::string& name) {
    const FloatArray values(reader.vector(name, {spec_.info.hidden}));
    return place.kind() == DeviceKind::kCpu ? values : values.placed(place);
  };
  embedding_memory_ = copy_table(read_embedding(reader), team);
  embedding_ = embedding_memory_.data();
  if (place.kind() != DeviceKind::kCpu) {
    embedding_ = place.take(embedding_memory_.size());
    place.copy_in(embedding_, embedding_memory_.data(), embedding_memory_.size());
    embedding_memory_ = Buffer();
  }
  reader.release();
  head_ = place_matrix(pack(layout_of(options_.device), read_head(reader), RowOrder::kPlain, &team), place);
  reader.release();
  final_norm_ = norm(prefix_ + "norm.weight");
  progress(1);
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    layer.input_norm = norm(layer_name(l) + ".input_layernorm.weight");
    layer.post_norm = norm(layer_name(l) + ".post_attention_layernorm.weight");
    std::visit([&](auto& block) { block.load(reader, place); }, layer.mixer);
    layer.moe.load(reader, place);
    progress(static_cast<int64_t>(l) + 2);
  }
}

size_t Decoder::workspace_bytes(const StepLimits& limits) const {
  size_t most = head_choices_.workspace(head_problem_, limits.logit_rows, limits.team_members);
  for (const Layer& layer : layers_) {
    most = std::max(most, layer.moe.workspace(limits));
    std::visit([&](const auto& block) { most = std::max(most, block.workspace(limits)); }, layer.mixer);
  }
  return most;
}

size_t Decoder::scratch_bytes(const StepLimits& limits) const {
  const auto rows = static_cast<size_t>(limits.rows), logit_rows = static_cast<size_t>(limits.logit_rows);
  const auto hidden = static_cast<size_t>(spec_.info.hidden), top_k = static_cast<size_t>(spec_.moe.top_k);
  const size_t x = size_of(x_dtype());
  size_t bytes = aligned(rows * hidden * sizeof(float)) * static_cast<size_t>(1 + partial_buffers());
  bytes += aligned(rows * hidden * x) + aligned(logit_rows * hidden * x);
  bytes += aligned(rows * top_k * sizeof(int32_t)) + aligned(rows * top_k * sizeof(float));
  if (options_.ranks > 1) bytes += aligned(logit_rows * static_cast<size_t>(vocab_.size()) * sizeof(float));
  return bytes + aligned(workspace_bytes(limits));
}

void Decoder::ready(const StepLimits& limits, std::vector<TensorView> caches, Comm& comm) {
  CHECK(caches.size() == cache_list_.size(), fmt::format("caches: {} of {}", caches.size(), cache_list_.size()));
  limits_ = limits;
  caches_ = std::move(caches);
  comm_ = &comm;
  const size_t scratch = scratch_bytes(limits);
  scratch_memory_ = {static_cast<uint8_t*>(place_->take(scratch)), scratch};
  scratch_ = std::make_unique<Arena>(scratch_memory_.data(), scratch);
  const auto rows = static_cast<size_t>(limits.rows), logit_rows = static_cast<size_t>(limits.logit_rows);
  const auto hidden = static_cast<size_t>(spec_.info.hidden), top_k = static_cast<size_t>(spec_.moe.top_k);
  const size_t x = size_of(x_dtype());
  residual_ = static_cast<float*>(scratch_->take(rows * hidden * sizeof(float)));
  for (int b = 0; b < Comm::kBuffers; ++b) {
    const int own = b % partial_buffers();
    partials_[static_cast<size_t>(b)] = own < b ? partials_[static_cast<size_t>(own)]
                                                : static_cast<float*>(scratch_->take(rows * hidden * sizeof(float)));
    comm.publish(options_.rank, b, partials_[static_cast<size_t>(b)]);
  }
  x_ = scratch_->take(rows * hidden * x);
  head_x_ = scratch_->take(logit_rows * hidden * x);
  selection_.ids = static_cast<int32_t*>(scratch_->take(rows * top_k * sizeof(int32_t)));
  selection_.weights = static_cast<float*>(scratch_->take(rows * top_k * sizeof(float)));
  if (options_.ranks > 1)
    head_y_ = static_cast<float*>(scratch_->take(logit_rows * static_cast<size_t>(vocab_.size()) * sizeof(float)));
  ws_.bytes = workspace_bytes(limits);
  ws_.data = static_cast<uint8_t*>(scratch_->take(ws_.bytes));
}

// pending: the buffer of partials that is not in the residual yet; -1: none.
void Decoder::join(int rows, int pending, const FloatArray& weight, Stream& stream) {
  const JoinArgs args{.problem = join_problem(pending < 0 ? 0 : options_.ranks),
                      .rows = rows,
                      .residual = view_of(residual_, DType::kF32, {rows, spec_.info.hidden}),
                      .partials = pending < 0 ? std::span<const float* const>{} : comm_->partials(pending),
                      .weight = weight.data(),
                      .x = rows_of_x(rows)};
  run_op((pending < 0 ? first_join_choices_ : join_choices_).at(rows), args, stream);
}

void Decoder::forward(const Step& step, Stream& stream) {
  const int rows = step.batch.rows, hidden = spec_.info.hidden;
  CHECK(rows <= limits_.rows && std::ssize(step.logit_rows) <= limits_.logit_rows,
        fmt::format("step of {} rows, {} logit rows: at most {} and {}", rows, step.logit_rows.size(), limits_.rows,
                    limits_.logit_rows));
  const EmbedArgs embed{.problem = embed_problem_,
                        .rows = rows,
                        .ids = step.ids,
                        .table = view_of(embedding_, DType::kBF16, {spec_.info.vocab, hidden}),
                        .residual = view_of(residual_, DType::kF32, {rows, hidden}),
                        .device_ids = step.batch.device != nullptr ? step.batch.device->ids : nullptr};
  run_op(embed_choices_.at(rows), embed, stream);
  look(step, embed.residual, kEmbedPlace, stream);
  int pending = -1;
  int32_t place = kEmbedPlace;
  for (const Layer& layer : layers_) {
    join(rows, pending, layer.input_norm, stream);
    look(step, rows_of_x(rows), ++place, stream);
    std::visit(
        [&](const auto& block) { block.run(step.batch, rows_of_x(rows), caches_, partial(0, rows), ws_, stream); },
        layer.mixer);
    look(step, partial(0, rows), ++place, stream);
    comm_->barrier();
    join(rows, 0, layer.post_norm, stream);
    look(step, rows_of_x(rows), ++place, stream);
    layer.moe.run(rows_of_x(rows), partial(1, rows), selection_, ws_, stream);
    if (step.on_routes != nullptr)
      (*step.on_routes)(static_cast<int>(&layer - layers_.data()), selection_.ids, spec_.moe.top_k);
    look(step, partial(1, rows), ++place, stream);
    comm_->barrier();
    pending = 1;
  }
  if (step.logit_rows.empty()) return;
  join(rows, pending, final_norm_, stream);
  look(step, rows_of_x(rows), ++place, stream);
  head(step, stream);
}

void Decoder::look(const Step& step, const TensorView& output, int32_t place, Stream& stream,
                   const int32_t* rows) const {
  if (step.marks.empty()) return;
  int32_t* marks = step.marks[static_cast<size_t>(options_.rank)];
  if (step.batch.device != nullptr) return gpu::mark_not_finite(output, rows, place, marks, stream.cuda);
  mark_not_finite(output, rows, place, marks);
}

OpPlace Decoder::place_of(int32_t mark, int rows, int logit_rows) const {
  if (mark == kEmbedPlace) return place(embed_choices_, rows, "of the tokens");
  if (mark == last_join_place()) return place(join_choices_, rows, "behind the last layer");
  if (mark > last_join_place()) return place(head_choices_, logit_rows, "of the output head");
  const auto at = static_cast<size_t>(mark - kEmbedPlace - 1), l = at / kPlacesOfALayer;
  const Layer& layer = layers_[l];
  switch (at % kPlacesOfALayer) {
    case 0:
      return place_in(l == 0 ? first_join_choices_ : join_choices_, rows, l);
    case 1:
      return std::visit([&](const auto& block) { return place_in(block.choices(), rows, l); }, layer.mixer);
    case 2:
      return place_in(join_choices_, rows, l);
    default:
      return place_in(layer.moe.choices(), rows, l);
  }
}

void Decoder::head(const Step& step, Stream& stream) {
  const int hidden = spec_.info.hidden, rows = static_cast<int>(step.logit_rows.size());
  const size_t row_bytes = static_cast<size_t>(hidden) * size_of(x_dtype());
  const bool every_row = rows == step.batch.rows;  // ascending and distinct: they are where they shall be
  if (!every_row && step.batch.device != nullptr)
    gpu::gather_rows(head_x_, x_, step.batch.device->logit_row, rows, row_bytes, stream.cuda);
  for (int i = 0; !every_row && step.batch.device == nullptr && i < rows; ++i)
    std::memcpy(
        static_cast<uint8_t*>(head_x_) + static_cast<size_t>(i) * row_bytes,
        static_cast<const uint8_t*>(x_) + static_cast<size_t>(step.logit_rows[static_cast<size_t>(i)]) * row_bytes,
        row_bytes);
  const bool alone = options_.ranks == 1;
  const LinearArgs args{.problem = head_problem_,
                        .rows = rows,
                        .x = view_of(every_row ? x_ : head_x_, x_dtype(), {rows, hidden}),
                        .weight = &head_,
                        .y = view_of(alone ? step.logits.data : head_y_, DType::kF32, {rows, vocab_.size()}),
                        .ws = ws_};
  run_op(head_choices_.at(rows), args, stream);
  const bool on_device = step.batch.device != nullptr;
  look(step, args.y, last_join_place() + 1, stream, on_device ? step.batch.device->logit_row : step.logit_rows.data());
  if (alone) return;
  for (int i = 0; i < rows; ++i)
    std::memcpy(step.logits.as<float>() + int64_t{i} * spec_.info.vocab + vocab_.begin, head_y_ + i * vocab_.size(),
                static_cast<size_t>(vocab_.size()) * sizeof(float));
  comm_->barrier();
}

}  // namespace

std::unique_ptr<Model> make_decoder(DecoderSpec spec, WeightSource& source, const ModelOptions& options) {
  return std::make_unique<Decoder>(std::move(spec), source, options);
}

}  // namespace mettle

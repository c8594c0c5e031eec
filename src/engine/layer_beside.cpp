#include "engine/layer_beside.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "engine/layer_steps.h"
#include "engine/watching_choices.h"
#include "prove/examination.h"
#include "prove/trial.h"
#include "tensor/gpu.h"

namespace mettle {

thread_local LayerBeside* LayerBeside::current = nullptr;

namespace {

constexpr double kBf16Ulp = 0x1p-8;
constexpr double kAllowed = 4;                  // times a bound, of a row's norm
constexpr double kAllowedOfElement = 8;         // times that
constexpr int64_t kStepWork = 250'000'000'000;  // multiply-adds of the references in a step: some tenths of a second
constexpr int kTokens = 320;                    // of a sequence

using Output = LayerBeside::Output;

// A tensor's first `row_dims` dimensions as rows; of its first dimension the first `entries`.
Output as_rows(const char* name, const TensorView& t, int row_dims, double bound, int64_t entries) {
  Output o{.name = name, .data = t.data, .dtype = t.dtype, .rows = entries, .cols = 1, .bound = bound};
  for (int d = 1; d < t.shape.rank; ++d) (d < row_dims ? o.rows : o.cols) *= t.shape[d];
  o.compared = o.rows;
  return o;
}

// A prompt and a chunk of a second, both with a longer prompt, decode of all and of one, a longer chunk. A step of a
// deterministic engine is filled up to one of two shapes; only that of decode is small.
std::vector<LayerSteps::Turns> script(bool decode_only) {
  if (decode_only) return {{{0, 1}, {1, 1}}, {{0, 1}, {1, 1}, {2, 1}}, {{1, 1}}};
  return {{{0, 17}, {1, 5}}, {{0, 1}, {1, 1}, {2, 200}}, {{0, 1}, {1, 1}, {2, 1}}, {{1, 1}}, {{0, 290}}};
}
bool decode_only(const Runner::Sizes& sizes, DeviceKind kind) {
  return kind == DeviceKind::kCuda && sizes.deterministic && sizes.rows > kTokens;
}
int most_rows(const Runner::Sizes& sizes, DeviceKind kind) {
  if (decode_only(sizes, kind)) return sizes.logit_rows;
  return std::min(sizes.rows, kTokens);
}

template <class Op>
const Backend<Op>* reference_on(DeviceKind kind) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == "reference" && b->kind == kind && b->run != nullptr) return b;
  return nullptr;
}

// Of one op; blocks and slots as the caches' entries say.
struct Need {
  int64_t rows, logit_rows, blocks, block_size, slots;
  int64_t operator()(const EmbedProblem& p) const { return rows * p.hidden * 4; }
  int64_t operator()(const JoinProblem& p) const { return rows * p.hidden * 8; }
  int64_t operator()(const LinearProblem& p) const { return std::max(rows, logit_rows) * p.out * 4; }
  int64_t operator()(const MoeProblem& p) const { return rows * (p.hidden + 2 * int64_t{p.top_k}) * 4; }
  int64_t operator()(const AttentionProblem& p) const {
    return rows * p.hidden * 4 + 2 * blocks * block_size * p.kv_heads * p.head_dim * 4;
  }
  int64_t operator()(const GdnProblem& p) const {
    return rows * p.hidden * 4 + slots * 4 * (p.channels() * (p.conv - 1) + int64_t{p.value_heads} * p.dk * p.dv);
  }
  int64_t operator()(const SampleProblem&) const { return 0; }
};

LayerBeside::Room room_of(const Model& model, const Runner::Sizes& sizes, DeviceKind kind, int64_t blocks,
                          int64_t slots, int members) {
  const int rows = most_rows(sizes, kind);
  LayerBeside::Room room;
  // The head has rows of logits, far fewer than a step's; a deterministic step on a GPU has all it may have.
  const bool padded = kind == DeviceKind::kCuda && sizes.deterministic;
  const int64_t logit_rows = std::max<int64_t>(padded ? sizes.logit_rows : 4, 4);
  for (const AnyProblem& problem : model.problems())
    std::visit(
        [&](const auto& p) {
          using Op = OpOf<std::decay_t<decltype(p)>>;
          const bool head = std::is_same_v<Op, LinearOp>;
          const Need need{head ? logit_rows : rows, logit_rows, blocks, sizes.block_size, slots};
          room.outputs = std::max(room.outputs, need(p));
          if constexpr (!std::is_same_v<Op, SampleOp>)
            if (const Backend<Op>* reference = reference_on<Op>(kind))
              if (reference->workspace != nullptr)
                room.workspace = std::max<int64_t>(
                    room.workspace, static_cast<int64_t>(reference->workspace({.name = "plain"}, p, rows, members)));
        },
        problem);
  return room;
}

}  // namespace

LayerBeside::LayerBeside(Runner& runner, ChoiceSource& choices, int64_t blocks, int64_t slots, const Room& room)
    : runner_(runner), choices_(choices), blocks_(blocks), slots_(slots) {
  place_ = runner.place().kind() == DeviceKind::kCuda ? gpu::place() : host_place();
  this->room(0, static_cast<size_t>(room.outputs));
  this->room(1, static_cast<size_t>(room.outputs));
  this->room(2, static_cast<size_t>(room.workspace));
}

uint8_t* LayerBeside::room(size_t which, size_t bytes) {
  auto& [data, size] = rooms_[which];
  if (size < bytes || data == nullptr) {
    data = static_cast<uint8_t*>(place_->take(std::max<size_t>(bytes, 1)));
    size = bytes;
  }
  return data;
}

void LayerBeside::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (place_->kind() == DeviceKind::kCuda) return gpu::copy_on_device(to, from, bytes, runner_.stream().cuda);
  std::memcpy(to, from, bytes);
}

std::span<const RowApart> LayerBeside::apart(const Output& have, const void* need) {
  auto& [facts, size] = facts_;
  if (size < have.rows) {
    size = have.rows;
    facts = static_cast<RowApart*>(place_->take_shared(static_cast<size_t>(size) * sizeof(RowApart)));
  }
  if (place_->kind() == DeviceKind::kCuda) {
    gpu::rows_apart(have.data, need, have.dtype, have.rows, have.cols, facts, runner_.stream().cuda);
    runner_.wait();
  } else {
    rows_apart(have.data, need, have.dtype, have.rows, have.cols, facts);
  }
  return {facts, static_cast<size_t>(have.rows)};
}

std::vector<uint64_t> LayerBeside::bits_of(const Output& rows) {
  std::vector<uint64_t> bits;
  for (const RowApart& row : apart(rows, rows.data)) bits.push_back(row.bits);
  return bits;
}

void LayerBeside::refuse_as(VerdictCode code, std::string have, std::string need, const std::string& what) const {
  throw ProofFailure{refuse(code, std::move(have), std::move(need), fmt::format("{}, {}: {}", step_, name_, what))};
}

void LayerBeside::begin_step(std::string step, int rows, std::span<const int32_t> logit_rows, int stride) {
  step_ = std::move(step);
  rows_ = rows;
  stride_ = stride;
  logit_rows_.assign(logit_rows.begin(), logit_rows.end());
  seen_.clear();
  ++steps_;
}

// Before the op is counted.
std::string LayerBeside::place_of(std::string_view op) const {
  const auto seen = [&](std::string_view name) {
    const auto at = seen_.find(name);
    return at == seen_.end() ? 0 : at->second;
  };
  if (op == EmbedOp::kName || op == LinearOp::kName) return std::string(op);
  const int layer = op == JoinOp::kName ? seen(op) / 2 : seen(MoeOp::kName);
  if (layer == runner_.ranks().front()->info().layers) return fmt::format("{} behind the last layer", op);
  return fmt::format("layer {} {}", layer, op);
}

template <class Op>
const Choice<Op>* LayerBeside::reference(const typename Op::Problem& problem) {
  auto& known = std::get<References<Op>>(references_);
  for (const auto& [asked, choice] : known)
    if (asked == problem) return choice.backend == nullptr ? nullptr : &choice;
  Choice<Op> choice;
  const Device device = place_->kind() == DeviceKind::kCuda ? gpu::device(0) : this_cpu();
  if (const Backend<Op>* b = reference_on<Op>(place_->kind()); b != nullptr && b->supports(problem, device).ok())
    choice = {b, b->tactics(problem, device).front()};
  known.emplace_back(problem, choice);
  return known.back().second.backend == nullptr ? nullptr : &known.back().second;
}

template <class Op>
void LayerBeside::run(const typename Op::Args& args, Stream& stream) {
  const Choice<Op> served = choices_.choose(args.problem).at(rows_of_args<Op>(args));
  const auto run_served = [&] { served.backend->run(served.tactic, args, stream); };
  if (!verdict_.ok()) return run_served();
  name_ = fmt::format("{} ({}/{})", place_of(Op::kName), served.backend->name, served.tactic.name);
  const int index = seen_[Op::kName]++;
  bool ran = false;
  try {
    look(args);
    const Choice<Op>* reference = this->reference<Op>(args.problem);
    const std::vector<Output> all = outputs(args, served.backend->numerics);
    const bool turn = reference != nullptr && ((index + steps_) % stride_ == 0 || all.front().rows_of_model);
    if (!turn) {
      run_served();
      ran = true;
    } else {
      size_t bytes = 0;
      for (const Output& o : all) bytes += o.bytes();
      uint8_t *before = room(0, bytes), *needed = room(1, bytes);
      const auto each = [&](auto&& what) {
        size_t offset = 0;
        for (const Output& o : all) what(o, offset), offset += o.bytes();
      };
      typename Op::Args beside = args;
      if constexpr (requires { beside.ws; }) {
        const size_t most = reference->backend->workspace == nullptr
                                ? 0
                                : reference->backend->workspace(reference->tactic, args.problem, rows_of_args<Op>(args),
                                                                stream.team == nullptr ? 1 : stream.team->members());
        beside.ws = {room(2, most), most};
      }
      each([&](const Output& o, size_t at) { copy(before + at, o.data, o.bytes()); });
      reference->backend->run(reference->tactic, beside, stream);
      each([&](const Output& o, size_t at) {
        copy(needed + at, o.data, o.bytes()), copy(o.data, before + at, o.bytes());
      });
      run_served();
      ran = true;
      std::vector<bool> skip;
      each([&](const Output& o, size_t at) {
        if (o.ids) skip = rerouted(o, needed + at);
      });
      each([&](const Output& o, size_t at) {
        if (!o.ids) compare(o, needed + at, skip);
      });
      ++ops_;
    }
    left(args);
  } catch (const ProofFailure& f) {
    verdict_ = f.verdict;
    if (!ran) run_served();  // the step goes on unwatched
  }
  writer_ = name_;
}

std::vector<bool> LayerBeside::rerouted(const Output& ids, const void* need) {
  std::vector<bool> others;
  const std::vector<uint64_t> have = bits_of(ids);
  Output of_reference = ids;
  of_reference.data = const_cast<void*>(need);
  const std::vector<uint64_t> wanted = bits_of(of_reference);
  for (int64_t r = 0; r < ids.compared; ++r) {
    const auto row = static_cast<size_t>(r);
    others.push_back(have[row] != wanted[row]);
    rerouted_ += others.back();
    ++routed_;
  }
  if (rerouted_ * 100 > routed_ + 200) {
    const auto first = std::find(others.begin(), others.end(), true) - others.begin();
    refuse_as(VerdictCode::kWrongSelection, fmt::format("{} of {} rows", rerouted_, routed_), "at most 1 in 100",
              fmt::format("selection[row {}] has other experts than the reference's, as {} of {} rows so far", first,
                          rerouted_, routed_));
  }
  return others;
}

void LayerBeside::compare(const Output& have, const void* need, const std::vector<bool>& skip) {
  const auto facts = apart(have, need);
  const double most = kAllowed * have.bound, most_of_element = kAllowedOfElement * most;
  for (int64_t r = 0; r < have.compared; ++r) {
    if (static_cast<size_t>(r) < skip.size() && skip[static_cast<size_t>(r)]) continue;
    const RowApart& row = facts[static_cast<size_t>(r)];
    const auto at = [&] { return fmt::format("{}[row {}, column {}]", have.name, r, row.column); };
    if (!row.finite)
      refuse_as(VerdictCode::kNotFinite, "not finite", "what the reference has",
                at() + " is not finite, or was not there");
    const double error = row.difference == 0 ? 0 : row.difference / row.norm;
    compared_ += static_cast<uint64_t>(have.cols);
    if (!(error <= most))
      refuse_as(
          VerdictCode::kWrongOutput, fmt::format("{:.3g}", error), fmt::format("at most {:.3g}", most),
          fmt::format("the row of {} is {:.3g} of its norm from the reference, at most {:.3g}", at(), error, most));
    if (!(row.element <= most_of_element))
      refuse_as(VerdictCode::kWrongOutput, fmt::format("{:.3g}", row.element),
                fmt::format("at most {:.3g}", most_of_element),
                fmt::format("{} is {:.3g} of its own and the row's size from the reference, at most {:.3g}", at(),
                            row.element, most_of_element));
    if (have.bound > 0) worst_ = std::max({worst_, error / most, row.element / most_of_element});
  }
}

// --- what an op may change ---

Output LayerBeside::of_step(const char* name, const TensorView& t, double bound) const {
  Output o = as_rows(name, t, 1, bound, t.shape[0]);
  o.compared = std::min<int64_t>(o.rows, rows_);  // padding comes behind
  return o;
}

std::vector<Output> LayerBeside::outputs(const EmbedArgs& a, const Numerics&) const {
  Output residual = of_step("residual", a.residual, 0);
  residual.rows_of_model = true;
  return {residual};
}
std::vector<Output> LayerBeside::outputs(const JoinArgs& a, const Numerics&) const {
  return {of_step("residual", a.residual, 0x1p-20), of_step("x", a.x, kBf16Ulp)};
}
std::vector<Output> LayerBeside::outputs(const LinearArgs& a, const Numerics&) const {
  Output y = of_step("logits", a.y, 0x1p-12);
  y.compared = std::min<int64_t>(y.rows, std::ssize(logit_rows_));
  y.rows_of_model = true;
  return {y};
}
std::vector<Output> LayerBeside::outputs(const MoeArgs& a, const Numerics&) const {
  const int64_t compared = std::min(a.rows, rows_);
  const Output ids{.name = "selection",
                   .data = a.selection.ids,
                   .rows = a.rows,
                   .cols = a.problem.top_k,
                   .compared = compared,
                   .ids = true};
  const Output weights{.name = "selection.weights",
                       .data = a.selection.weights,
                       .rows = a.rows,
                       .cols = a.problem.top_k,
                       .compared = compared,
                       .bound = 0x1p-13};
  return {ids, weights, of_step("partial", a.partial, kBf16Ulp)};
}
std::vector<Output> LayerBeside::outputs(const AttentionArgs& a, const Numerics&) const {
  const double cache = a.k_cache.dtype == DType::kE4M3 ? 0x1p-5 : kBf16Ulp;
  return {of_step("partial", a.partial, 2 * kBf16Ulp),
          as_rows("k", a.k_cache, 3, cache, std::min(blocks_, a.k_cache.shape[0])),
          as_rows("v", a.v_cache, 3, cache, std::min(blocks_, a.v_cache.shape[0]))};
}
std::vector<Output> LayerBeside::outputs(const GdnArgs& a, const Numerics& n) const {
  const bool rounds = n.gdn_inner == Rounds::kBf16;
  return {of_step("partial", a.partial, rounds ? 4 * kBf16Ulp : kBf16Ulp),
          as_rows("state", a.state, 2, rounds ? 4 * kBf16Ulp : 0x1p-10, std::min(slots_, a.state.shape[0])),
          as_rows("conv_state", a.conv_state, 1, 0x1p-14, std::min(slots_, a.conv_state.shape[0]))};
}

// --- between the ops ---

void LayerBeside::demand_same(const char* what, const Known& known, const Output& found) {
  const std::vector<uint64_t> now = bits_of(found);
  const size_t rows = std::min(known.bits.size(), now.size());
  for (size_t r = 0; r < rows; ++r)
    if (now[r] != known.bits[r])
      refuse_as(VerdictCode::kOverrun, "other bits", "the bits that were written",
                fmt::format("{} is not what {} left there: row {} of {} changed, {} ran last", what, known.writer, r,
                            rows, writer_));
}

void LayerBeside::look(const JoinArgs& a) {
  demand_same("residual", residual_, of_step("residual", a.residual, 0));
  if (!a.partials.empty())
    demand_same(
        "partial", partial_,
        of_step("partial",
                {.data = const_cast<float*>(a.partials.front()), .dtype = DType::kF32, .shape = a.residual.shape}, 0));
}
void LayerBeside::look(const LinearArgs& a) {
  const std::vector<uint64_t> now = bits_of(of_step("x", a.x, 0));
  const bool every_row = now.size() == x_.bits.size();  // else they were brought together, and padding behind them
  for (size_t i = 0; i < logit_rows_.size() && i < now.size(); ++i) {
    const auto row = every_row ? i : static_cast<size_t>(logit_rows_[i]);
    if (row < x_.bits.size() && now[i] != x_.bits[row])
      refuse_as(VerdictCode::kOverrun, "other bits", "the bits that were written",
                fmt::format("x of row {}, whose logits are wanted, is not what {} left", row, x_.writer));
  }
}
void LayerBeside::look(const MoeArgs& a) { demand_same("x", x_, of_step("x", a.x, 0)); }
void LayerBeside::look(const AttentionArgs& a) {
  demand_same("x", x_, of_step("x", a.x, 0));
  const std::vector<Output> all = outputs(a, {});
  find_cache(all[1], a.weights), find_cache(all[2], a.weights);
}
void LayerBeside::look(const GdnArgs& a) {
  demand_same("x", x_, of_step("x", a.x, 0));
  const std::vector<Output> all = outputs(a, {});
  find_cache(all[1], a.weights), find_cache(all[2], a.weights);
}

void LayerBeside::find_cache(const Output& cache, const void* weights) {
  const auto known = caches_.find(cache.data);
  if (known == caches_.end()) return;
  demand_same("a cache", known->second, cache);
  if (known->second.weights != weights)
    refuse_as(VerdictCode::kOverrun, "one cache", "a cache of its own",
              fmt::format("two layers use one cache: {} left it", known->second.writer));
}

void LayerBeside::left(const EmbedArgs& a) { residual_ = known(of_step("residual", a.residual, 0)); }
void LayerBeside::left(const JoinArgs& a) {
  residual_ = known(of_step("residual", a.residual, 0));
  x_ = known(of_step("x", a.x, 0));
}
void LayerBeside::left(const MoeArgs& a) { partial_ = known(of_step("partial", a.partial, 0)); }
void LayerBeside::left(const AttentionArgs& a) {
  const std::vector<Output> all = outputs(a, {});
  partial_ = known(all[0]);
  for (size_t i : {1, 2}) caches_[all[i].data] = known(all[i], a.weights);
}
void LayerBeside::left(const GdnArgs& a) {
  const std::vector<Output> all = outputs(a, {});
  partial_ = known(all[0]);
  for (size_t i : {1, 2}) caches_[all[i].data] = known(all[i], a.weights);
}

LayerBeside::Known LayerBeside::known(const Output& rows, const void* weights) {
  return {bits_of(rows), name_, weights, rows};
}

void LayerBeside::look_at_caches() {
  name_ = "behind the last step";
  try {
    for (const auto& [data, cache] : caches_)
      if (verdict_.ok()) demand_same("a cache", cache, cache.rows);
  } catch (const ProofFailure& f) {
    verdict_ = f.verdict;
  }
}

void LayerBeside::tell(LayerProof& proof) const {
  proof.verdict = verdict_;
  proof.beside = true;
  proof.ops = ops_;
  proof.comparisons = compared_;
  proof.worst = worst_;
  proof.routed = routed_;
  proof.rerouted = rerouted_;
  for (const auto& [data, size] : rooms_) proof.bytes += static_cast<int64_t>(size);
}

template void LayerBeside::run<EmbedOp>(const EmbedArgs&, Stream&);
template void LayerBeside::run<JoinOp>(const JoinArgs&, Stream&);
template void LayerBeside::run<LinearOp>(const LinearArgs&, Stream&);
template void LayerBeside::run<MoeOp>(const MoeArgs&, Stream&);
template void LayerBeside::run<AttentionOp>(const AttentionArgs&, Stream&);
template void LayerBeside::run<GdnOp>(const GdnArgs&, Stream&);

LayerProof prove_layers_beside(Runner& runner, const Runner::Sizes& sizes, ChoiceSource& choices) {
  LayerProof proof;
  Model& model = *runner.ranks().front();
  const DeviceKind kind = runner.place().kind();
  LayerSteps steps(runner, sizes, kTokens);
  const std::vector<AnyProblem> problems = model.problems();
  const int64_t work = work_of_a_row(problems) * model.info().layers;
  LayerBeside beside(runner, choices, steps.blocks(), steps.slots(),
                     room_of(model, sizes, kind, steps.blocks(), steps.slots(), runner.team().members()));
  runner.fill_caches(0xff, steps.blocks(), steps.slots());  // NaN: a row that no step wrote may not be read
  {
    const Watched<LayerBeside> watched(model, choices, beside);
    for (const LayerSteps::Turns& turns : script(decode_only(sizes, kind))) {
      const bool ran = steps.run(turns, [&](int rows, std::span<const int32_t> logit_rows) {
        beside.begin_step(fmt::format("step {} of {} rows", proof.steps, rows), rows, logit_rows,
                          static_cast<int>(work * rows / kStepWork) + 1);
      });
      if (ran) ++proof.steps;
      if (!beside.verdict().ok()) break;
    }
    beside.look_at_caches();
  }
  runner.fill_caches(0, steps.blocks(), steps.slots());
  beside.tell(proof);
  if (proof.verdict.ok() && proof.comparisons == 0)
    proof.verdict = refuse(VerdictCode::kUnproved, "0 comparisons", "at least 1", "no step fits this set-up");
  return proof;
}

int64_t layers_beside_bytes(const Model& model, const Runner::Sizes& sizes, DeviceKind kind) {
  const int64_t sequences = std::min(LayerSteps::kMostSequences, sizes.logit_rows);
  const int64_t tokens = std::min(sizes.context, kTokens);
  const int64_t blocks = sequences * ((tokens + sizes.block_size - 1) / sizes.block_size);
  return room_of(model, sizes, kind, blocks, sizes.slots > 0 ? sequences : 0, 1).bytes();
}

}  // namespace mettle

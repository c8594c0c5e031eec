// The chosen plan beside the device's references, op by op in its place: prompts of 1, 63, 64, 65, 1,000 and 4,097
// tokens and decode in mixed batches of 64 down to 1, through the engine, with dummy weights.
//   gpu_beside CONFIG_FOLDER [--json FILE]
// Every op of every layer runs twice under the same inputs: its reference, and, with everything that it may change put
// back, what serves. So no difference is carried on, and a row's own roundings bound it: two runs of an op differ by
// the order of float32 sums, which can turn a rounding to bf16 of a value inside by one ulp, 2^-8 of it. In a row's
// norm that is
//   embed                       nothing
//   linear (float32 only)       2^-12: so many sums of 2,048 terms
//   join, moe, gdn              2^-8: one rounding each (x; h; the core)
//   attention                   2^-7: q, probabilities and the core are rounded where the reference keeps float32
//   gdn that declares bf16 intermediates    2^-6
// and for the caches 2^-8, for states 2^-10 (2^-6 with such intermediates). The router of a row whose eighth and ninth
// scores are equal to float32's last bits may choose another expert: such rows are counted, at most 1 in 1,000, and
// their outputs not compared.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/weight_source.h"
#include "engine/choices.h"
#include "engine/test_support.h"
#include "models/registry.h"
#include "prove/prover.h"
#include "tensor/gpu.h"
#include "tensor/rows_apart.h"

namespace mettle {
namespace {

// What an op may change, as rows that are compared.
struct Output {
  std::string name;
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  double bound = 0;
  bool of_step = true;  // its rows are the step's: padding is not compared
  size_t bytes() const { return static_cast<size_t>(rows * cols) * size_of(dtype); }
};

Output output(const char* name, const TensorView& t, int64_t row_dims, double bound, bool of_step = true) {
  Output o{.name = name, .data = t.data, .dtype = t.dtype, .rows = 1, .cols = 1, .bound = bound, .of_step = of_step};
  for (int d = 0; d < t.shape.rank; ++d) (d < row_dims ? o.rows : o.cols) *= t.shape[d];
  return o;
}

constexpr double kBf16Ulp = 0x1p-8;

std::vector<Output> outputs(const EmbedArgs& a, const Numerics&) { return {output("residual", a.residual, 1, 0)}; }
std::vector<Output> outputs(const JoinArgs& a, const Numerics&) {
  return {output("residual", a.residual, 1, 0x1p-20), output("x", a.x, 1, kBf16Ulp)};
}
std::vector<Output> outputs(const LinearArgs& a, const Numerics&) { return {output("y", a.y, 1, 0x1p-12)}; }
std::vector<Output> outputs(const MoeArgs& a, const Numerics&) {
  return {output("partial", a.partial, 1, kBf16Ulp),
          {.name = "weights", .data = a.selection.weights, .rows = a.rows, .cols = a.problem.top_k, .bound = 0x1p-16}};
}
std::vector<Output> outputs(const AttentionArgs& a, const Numerics&) {
  return {output("partial", a.partial, 1, 2 * kBf16Ulp), output("k", a.k_cache, 3, kBf16Ulp, false),
          output("v", a.v_cache, 3, kBf16Ulp, false)};
}
std::vector<Output> outputs(const GdnArgs& a, const Numerics& n) {
  const bool rounds = n.gdn_inner == Rounds::kBf16;
  return {output("partial", a.partial, 1, rounds ? 4 * kBf16Ulp : kBf16Ulp),
          output("state", a.state, 2, rounds ? 4 * kBf16Ulp : 0x1p-10, false),
          output("conv_state", a.conv_state, 1, 0x1p-16, false)};
}

const Batch* batch_of(const AttentionArgs& a) { return a.batch; }
const Batch* batch_of(const GdnArgs& a) { return a.batch; }
template <class Args>
const Batch* batch_of(const Args&) {
  return nullptr;
}

struct Worst {
  double error = 0, bound = 0;
  uint64_t rows = 0;
  std::string where;
};

class Beside {
 public:
  static Beside& the() {
    static Beside one;
    return one;
  }
  std::atomic<bool> looking{false};
  std::string step;

  template <class Op>
  void run(int bucket, const typename Op::Args& args, Stream& stream) {
    const auto& both = std::get<Known<Op>>(known_);
    const auto at = std::find_if(both.begin(), both.end(), [&](const auto& k) { return k.problem == args.problem; });
    const Choice<Op>& served = at->served.by_bucket[static_cast<size_t>(bucket)];
    if (!looking) return served.backend->run(served.tactic, args, stream);
    const std::vector<Output> all = outputs(args, served.backend->numerics);
    size_t bytes = 0;
    for (const Output& o : all) bytes += o.bytes();
    uint8_t* before = room(0, bytes);
    uint8_t* reference = room(1, bytes);
    const auto each = [&](auto&& copy) {
      size_t offset = 0;
      for (const Output& o : all) copy(o, offset), offset += o.bytes();
    };
    each([&](const Output& o, size_t offset) { copy(before + offset, o.data, o.bytes(), stream); });
    at->reference.backend->run(at->reference.tactic, args, stream);
    const std::vector<int32_t> ids = chosen(args, stream);
    each([&](const Output& o, size_t offset) {
      copy(reference + offset, o.data, o.bytes(), stream);
      copy(o.data, before + offset, o.bytes(), stream);
    });
    served.backend->run(served.tactic, args, stream);
    const std::vector<bool> skip = skipped(args, ids, chosen(args, stream), stream);
    const std::string name = fmt::format("{} {}/{}", Op::kName, served.backend->name, served.tactic.name);
    each([&](const Output& o, size_t offset) { look(name, o, reference + offset, skip, stream); });
  }

  template <class Op>
  Choices<Op> wrap(const typename Op::Problem& problem, Choices<Op> served) {
    static const Backend<Op> backend = [] {
      Backend<Op> b;
      b.name = "beside";
      b.kind = DeviceKind::kCuda;
      b.layout = Layout::kP64;
      b.workspace = [](const Tactic&, const typename Op::Problem& p, int rows, int members) {
        for (const auto& k : std::get<Known<Op>>(the().known_))
          if (k.problem == p)
            return std::max(k.served.workspace(p, rows, members),
                            k.reference.backend->workspace(k.reference.tactic, p, rows, members));
        return size_t{0};
      };
      b.run = [](const Tactic& tactic, const typename Op::Args& args, Stream& stream) {
        the().run<Op>(tactic.variant, args, stream);
      };
      return b;
    }();
    One<Op> one{.problem = problem, .served = served};
    const Device device = gpu::device(0);
    for (const Backend<Op>* b : backends_of<Op>())
      if (b->kind == DeviceKind::kCuda && b->name == "reference")
        one.reference = {b, b->tactics(problem, device).front()};
    CHECK(one.reference.backend != nullptr, problem.text());
    std::get<Known<Op>>(known_).push_back(std::move(one));
    Choices<Op> choices;
    for (size_t b = 0; b < kRowBuckets.size(); ++b)
      choices.by_bucket[b] = {&backend, {.name = "beside", .variant = static_cast<int>(b)}};
    return choices;
  }

  const std::map<std::string, Worst>& worst() const { return worst_; }
  uint64_t rerouted = 0, routed = 0, failures = 0;

 private:
  template <class Op>
  struct One {
    typename Op::Problem problem;
    Choices<Op> served;
    Choice<Op> reference;
  };
  template <class Op>
  using Known = std::vector<One<Op>>;

  void read(void* to, const void* from, size_t bytes, Stream& stream) {
    if (place_ == nullptr) place_ = gpu::place();
    gpu::wait(stream.cuda);
    place_->copy_out(to, from, bytes);
  }

  // The experts of a moe's rows.
  std::vector<int32_t> chosen(const MoeArgs& a, Stream& stream) {
    std::vector<int32_t> ids(static_cast<size_t>(a.rows * a.problem.top_k));
    read(ids.data(), a.selection.ids, ids.size() * sizeof(int32_t), stream);
    return ids;
  }
  template <class Args>
  std::vector<int32_t> chosen(const Args&, Stream&) {
    return {};
  }

  // Rows that are not compared: padding, and those whose router chose others.
  template <class Args>
  std::vector<bool> skipped(const Args& args, const std::vector<int32_t>& before, const std::vector<int32_t>& after,
                            Stream& stream) {
    std::vector<bool> skip;
    if (const Batch* batch = batch_of(args); batch != nullptr) {
      std::vector<int32_t> sequence(static_cast<size_t>(batch->device->rows));
      read(sequence.data(), batch->device->row_sequence, sequence.size() * sizeof(int32_t), stream);
      for (const int32_t s : sequence) skip.push_back(s < 0);
    }
    if constexpr (std::is_same_v<Args, MoeArgs>) {
      const auto k = static_cast<size_t>(args.problem.top_k);
      for (size_t row = 0; row * k < before.size(); ++row) {
        skip.push_back(!std::equal(before.begin() + static_cast<std::ptrdiff_t>(row * k),
                                   before.begin() + static_cast<std::ptrdiff_t>((row + 1) * k),
                                   after.begin() + static_cast<std::ptrdiff_t>(row * k)));
        rerouted += skip.back();
        ++routed;
      }
    }
    return skip;
  }

  std::span<const RowApart> apart(const Output& o, const void* need, Stream& stream) {
    if (place_ == nullptr) place_ = gpu::place();
    if (facts_.second < o.rows)
      facts_ = {static_cast<RowApart*>(place_->take_shared(static_cast<size_t>(o.rows) * sizeof(RowApart))), o.rows};
    gpu::rows_apart(o.data, need, o.dtype, o.rows, o.cols, facts_.first, stream.cuda);
    gpu::wait(stream.cuda);
    return {facts_.first, static_cast<size_t>(o.rows)};
  }

  void look(const std::string& name, const Output& o, const void* need, const std::vector<bool>& skip, Stream& stream) {
    const std::span<const RowApart> rows = apart(o, need, stream);
    Worst& worst = worst_[name + " " + o.name];
    worst.bound = o.bound;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (o.of_step && r < skip.size() && skip[r]) continue;
      ++worst.rows;
      const RowApart& row = rows[r];
      const double error = !row.finite ? INFINITY : row.difference == 0 ? 0 : row.difference / row.norm;
      if (!(error <= o.bound) && ++failures <= 20)
        std::printf("%s: %s %s, row %zu of %zu: %.3g of its norm apart, at most %.3g\n", step.c_str(), name.c_str(),
                    o.name.c_str(), r, rows.size(), error, o.bound);
      if (error <= worst.error) continue;
      worst.error = error;
      worst.where = fmt::format("{}, row {}", step, r);
    }
  }

  static void copy(void* to, const void* from, size_t bytes, Stream& stream) {
    if (bytes > 0) gpu::copy_on_device(to, from, bytes, stream.cuda);
  }
  uint8_t* room(size_t which, size_t bytes) {
    if (place_ == nullptr) place_ = gpu::place();
    if (rooms_[which].second < bytes) rooms_[which] = {static_cast<uint8_t*>(place_->take(bytes)), bytes};
    return rooms_[which].first;
  }

  std::tuple<Known<EmbedOp>, Known<JoinOp>, Known<LinearOp>, Known<MoeOp>, Known<AttentionOp>, Known<GdnOp>> known_;
  std::unique_ptr<Place> place_;
  std::array<std::pair<uint8_t*, size_t>, 2> rooms_{};
  std::pair<RowApart*, int64_t> facts_{};
  std::map<std::string, Worst> worst_;
};

class BesideChoices : public ChoiceSource {
 public:
  explicit BesideChoices(std::shared_ptr<ChoiceSource> inner) : inner_(std::move(inner)) {}
  Choices<EmbedOp> choose(const EmbedProblem& p) override { return Beside::the().wrap<EmbedOp>(p, inner_->choose(p)); }
  Choices<JoinOp> choose(const JoinProblem& p) override { return Beside::the().wrap<JoinOp>(p, inner_->choose(p)); }
  Choices<LinearOp> choose(const LinearProblem& p) override {
    return Beside::the().wrap<LinearOp>(p, inner_->choose(p));
  }
  Choices<MoeOp> choose(const MoeProblem& p) override { return Beside::the().wrap<MoeOp>(p, inner_->choose(p)); }
  Choices<AttentionOp> choose(const AttentionProblem& p) override {
    return Beside::the().wrap<AttentionOp>(p, inner_->choose(p));
  }
  Choices<GdnOp> choose(const GdnProblem& p) override { return Beside::the().wrap<GdnOp>(p, inner_->choose(p)); }
  Choices<SampleOp> choose(const SampleProblem& p) override { return inner_->choose(p); }

 private:
  std::shared_ptr<ChoiceSource> inner_;
};

// Prompts of so many tokens, new tokens of each; all at once, waited for.
void ask(Engine& engine, const std::string& what, const std::vector<std::pair<int, int>>& requests) {
  Beside::the().step = what;
  const int vocab = engine.info().vocab_size;
  std::vector<testing::Reply> replies(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> prompt;
    for (int t = 0; t < requests[i].first; ++t)
      prompt.push_back(static_cast<int32_t>((int64_t{t} * 7919 + static_cast<int64_t>(i) * 104'729 + 13) % vocab));
    SamplingParams params = testing::greedy(requests[i].second);
    params.ignore_eos = true;
    engine.submit(prompt, params, replies[i].listener());
  }
  for (testing::Reply& reply : replies)
    if (const TokenEvent& last = reply.wait(); last.finish == Finish::kError)
      fail(Code::kDevice, what + ": " + last.error);
}

int run(int argc, char** argv) {
  std::string folder, json;
  for (int i = 1; i < argc; ++i)
    if (std::string(argv[i]) == "--json" && i + 1 < argc)
      json = argv[++i];
    else
      folder = argv[i];
  if (folder.empty()) fail(Code::kInvalidRequest, "gpu_beside CONFIG_FOLDER [--json FILE]");

  EngineOptions options;
  options.model_path = folder;
  options.dummy_weights = true;
  options.device = "cuda";
  options.context_length = 4352;
  options.step_tokens = 4352;
  options.max_running = 64;
  options.cache_tokens = 4 * 4352;
  const ModelFolder model = open_model_folder(folder);
  const auto source = dummy_weights(model.config, options.dummy_seed);
  const Device device = find_device("cuda");
  const auto plain = make_model(model.config, *source, {.activation = options.activation, .device = DeviceKind::kCuda});
  std::vector<AnyProblem> problems = plain->problems();
  problems.emplace_back(SampleProblem{.vocab = plain->info().vocab, .usable = plain->info().vocab});
  const ProofReport report = prove(problems, {.device = device});
  warn_of_failures(report);

  Beside& beside = Beside::the();
  const auto looking = std::make_shared<std::atomic<bool>>(false);
  Probe probe;
  probe.choices = std::make_shared<BesideChoices>(proved_choices(report, options));
  probe.route_steps = looking;  // such steps run kernel by kernel
  probe.on_routes = [](int, int, std::span<const int32_t>) {};
  const auto engine = start_probed(options, probe);
  *looking = true;
  beside.looking = true;
  for (const int rows : {1, 63, 64, 65, 1000, 4097}) ask(*engine, fmt::format("prompt of {}", rows), {{rows, 2}});
  std::vector<std::pair<int, int>> many;
  for (int i = 0; i < 64; ++i) many.emplace_back(1 + i * 37 % 190, 2 + i / 4);  // batches of 64, 60, 56, .. 4
  ask(*engine, "64 mixed", many);
  ask(*engine, "3 mixed", {{5, 2}, {300, 3}, {17, 4}});
  beside.looking = false;

  nlohmann::json out = {{"device", device.model},         {"failures", beside.failures},
                        {"rows_routed", beside.routed},   {"rows_rerouted", beside.rerouted},
                        {"steps", engine->stats().steps}, {"ops", nlohmann::json::array()}};
  uint64_t compared = 0;
  for (const auto& [name, worst] : beside.worst()) {
    compared += worst.rows;
    std::printf("%-44s %9llu rows, worst %.3g of %.3g (%s)\n", name.c_str(),
                static_cast<unsigned long long>(worst.rows), worst.error, worst.bound, worst.where.c_str());
    out["ops"].push_back({{"name", name}, {"rows", worst.rows}, {"worst", worst.error}, {"bound", worst.bound}});
  }
  const bool few_rerouted = beside.rerouted * 1000 <= beside.routed + 1000;
  std::printf("%llu rows compared, %llu too far apart; the router chose others in %llu of %llu rows\n",
              static_cast<unsigned long long>(compared), static_cast<unsigned long long>(beside.failures),
              static_cast<unsigned long long>(beside.rerouted), static_cast<unsigned long long>(beside.routed));
  if (!json.empty()) std::ofstream(json) << out.dump(1) << "\n";
  return compared > 0 && beside.failures == 0 && few_rerouted ? 0 : 1;
}

}  // namespace
}  // namespace mettle

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "prove" && std::string(argv[2]) == "--child") return mettle::prove_child();
  try {
    return mettle::run(argc, argv);
  } catch (const mettle::Error& e) {
    std::fprintf(stderr, "gpu_beside: %s\n", e.what());
    return 1;
  }
}

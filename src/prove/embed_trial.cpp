#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "ops/embed_cases.h"
#include "prove/replay.h"
#include "prove/trial.h"

namespace mettle {
namespace {

constexpr int kLargest = 8'192;  // on a GPU a larger vocabulary is proved on a slice

EmbedProblem cut(EmbedProblem p) {
  if (int64_t{p.vocab} * p.hidden > int64_t{16} << 20) p.vocab = std::min(p.vocab, kLargest + p.vocab % 1024);
  return p;
}

// The table, of which the rows are filled that cases ask for; the others are zero. On a CPU it is address space alone
// until then, so that ids reach to the end of any vocabulary.
class Table {
 public:
  Table(const EmbedProblem& problem, bool on_gpu, uint64_t seed)
      : problem_(problem), seed_(seed), bytes_(static_cast<size_t>(problem.vocab) * problem.hidden * 2) {
    if (on_gpu) {
      shared_ = Buffer(bytes_);
      data_ = shared_.data();
      return;
    }
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) fail(Code::kDevice, fmt::format("memory: {} bytes wanted, none to be had", bytes_));
    madvise(data_, bytes_, MADV_NOHUGEPAGE);
  }
  ~Table() {
    if (shared_.size() == 0) munmap(data_, bytes_);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  void fill(std::span<const int32_t> ids) {
    for (const int32_t id : ids)
      if (filled_.insert(id).second) fill_embed_row(row(id), problem_.hidden, seed_, id);
  }
  uint16_t* row(int32_t id) const { return static_cast<uint16_t*>(data_) + int64_t{id} * problem_.hidden; }
  TensorView view() const { return {data_, DType::kBF16, {problem_.vocab, problem_.hidden}}; }

 private:
  EmbedProblem problem_;
  uint64_t seed_;
  size_t bytes_;
  Buffer shared_;
  void* data_ = nullptr;
  std::set<int32_t> filled_;
};

// Where a GPU can read them too.
Buffer shared_ids(const std::vector<int32_t>& ids) {
  Buffer buffer(ids.size() * sizeof(int32_t));
  std::copy(ids.begin(), ids.end(), buffer.as<int32_t>());
  return buffer;
}

}  // namespace

template <>
struct Trial<EmbedOp>::State {
  EmbedProblem problem;
  TrialContext context;
  std::unique_ptr<Table> table;
  std::vector<EmbedCase> cases;
};

template <>
Trial<EmbedOp>::~Trial() = default;

template <>
Trial<EmbedOp>::Trial(const EmbedProblem& whole, const TrialContext& context) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.context = context;
  const bool on_gpu = context.kind() != DeviceKind::kCpu;
  s.problem = on_gpu ? cut(whole) : whole;
  s.table = std::make_unique<Table>(s.problem, on_gpu, context.seed);
  s.cases = embed_cases(s.problem, context.seed + 1, 700);
  for (const EmbedCase& c : s.cases) s.table->fill(c.ids);
}

template <>
void Trial<EmbedOp>::prove(const Backend<EmbedOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  for (const EmbedCase& c : s.cases) {
    examination.begin(c.kind);
    Expected expected(c.rows, s.problem.hidden, DType::kF32);
    for (int r = 0; r < c.rows; ++r)
      for (int k = 0; k < s.problem.hidden; ++k)
        expected.value[static_cast<size_t>(r) * s.problem.hidden + k] =
            bf16_to_float(s.table->row(c.ids[static_cast<size_t>(r)])[k]);
    const Buffer ids = shared_ids(c.ids);
    std::vector<uint8_t> runs[2];
    for (int pass = 0; pass < 2; ++pass) {
      Guarded residual("residual", {c.rows, s.problem.hidden}, DType::kF32);
      residual.prefill(pass);
      const EmbedArgs args{s.problem, c.rows, c.ids.data(), s.table->view(), residual.view(), ids.as<int32_t>()};
      check_args(args);
      run_replayed(s.context, backend, tactic, args, pass == 1 ? &examination : nullptr);
      examination.demand(residual.check());
      runs[pass] = residual.copy();
      examination.judge_exact("residual", expected, floats(runs[pass]));
    }
    examination.judge_same(VerdictCode::kNondeterministic, "residual", runs[0], runs[1], int64_t{s.problem.hidden} * 4);
  }
}

template <>
std::function<void()> Trial<EmbedOp>::typical_launch(const Backend<EmbedOp>& backend, const Tactic& tactic, int rows) {
  State& s = *state_;
  struct Launch {
    std::vector<int32_t> ids;
    Buffer device_ids;
    Guarded out;
  };
  auto l = std::make_shared<Launch>();
  CaseRandom random(s.context.seed);
  for (int r = 0; r < rows; ++r) l->ids.push_back(random.below(s.problem.vocab));
  s.table->fill(l->ids);
  l->device_ids = shared_ids(l->ids);
  l->out = Guarded("residual", {rows, s.problem.hidden}, DType::kF32);
  return [this, l, &backend, tactic, rows] {
    Stream stream = state_->context.stream();
    backend.run(
        tactic,
        {state_->problem, rows, l->ids.data(), state_->table->view(), l->out.view(), l->device_ids.as<int32_t>()},
        stream);
  };
}

template class Trial<EmbedOp>;

}  // namespace mettle

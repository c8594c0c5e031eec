// gdn's CUDA kernels of longer sequences as they stand in src/ops/cuda, on a CPU (block.h), through all that the proof
// asks of a backend. Projections are the reference's: they are not what is modelled here.
#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "ops/cpu/reference_math.h"
#include "ops/cuda/gdn_chunked.h"
#include "ops/cuda/product.h"
#include "p64_product.h"
#include "prove/trial.h"

namespace mettle {
namespace cuda {

void model_shared_memory();

}  // namespace cuda

namespace {

Stream* now = nullptr;

void multiply(const PackedMatrix& w, const uint16_t* x, int rows, float* y) {
  std::vector<float> wide(static_cast<size_t>(rows * w.cols));
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = __uint_as_float(uint32_t{x[i]} << 16);
  for (int first = 0; first < rows; first += reference::kRows)
    reference::product(w, {wide.data() + first * w.cols, w.cols}, {y + first * w.rows, w.rows},
                       std::min(reference::kRows, rows - first), *now);
}

}  // namespace

namespace cuda {

// Of every op that is modelled.
void product(const PackedMatrix& w, const uint16_t* x, int rows, float* y, cudaStream_t) {
  w.layout == Layout::kP64 ? modelled::p64_product(w, x, rows, y) : multiply(w, x, rows, y);
}
int gdn_project(const GdnRecurrent& a, const GdnWeights& w, const uint16_t* x, void*) {
  multiply(w.qkv, x, a.rows, a.qkv);
  multiply(w.z, x, a.rows, a.z);
  multiply(w.ba, x, a.rows, a.ba);
  return 1;
}
bool gdn_output_tiles(const GdnRecurrent&, const GdnWeights&, float*, void*) { return false; }
// Not modelled; a step of one row a sequence goes row by row here.
void gdn_decode(const GdnRecurrent&, void*) { FAIL() << "decode"; }

}  // namespace cuda

namespace {

enum Variant { kFourRows, kChunks };
constexpr int kPaddingRows = 3;

cuda::GdnChunks carve_chunks(reference::Carver& c, const GdnProblem& p, int64_t rows) {
  cuda::GdnChunks s;
  const int64_t slots = cuda::gdn_chunk_slots(rows);
  s.slots = static_cast<int>(slots);
  s.keys = c.take<uint16_t>(slots * p.key_heads * 4 * cuda::gdn_key_part(p.dk));
  s.solved = c.take<uint16_t>(slots * p.value_heads * 4 * cuda::kGdnSolvedPart);
  s.decays = c.take<float>(slots * p.value_heads * 2 * cuda::kGdnChunk);
  return s;
}

// The step's own rows, then sequences and rows that only fill a bucket.
void run(const Tactic& tactic, const GdnArgs& a, Stream& stream) {
  now = &stream;
  const GdnProblem& p = a.problem;
  DeviceBatch device;
  device.rows = a.batch->rows + kPaddingRows;
  device.most_q = 2;  // a single row is not taken for decode
  std::vector<DeviceSequence> sequences;
  std::vector<int32_t> row_sequence;
  for (const BatchSequence& s : a.batch->sequences) {
    row_sequence.insert(row_sequence.end(), static_cast<size_t>(s.q_len), static_cast<int32_t>(sequences.size()));
    sequences.push_back({s.first_row, s.q_len, s.ctx_len, 0, s.state_in, s.state_out});
    device.most_q = std::max(device.most_q, s.q_len);
  }
  if (sequences.size() > 1) sequences.push_back({});
  row_sequence.resize(static_cast<size_t>(device.rows), -1);
  device.sequences = static_cast<int>(sequences.size());
  device.sequence = sequences.data();
  device.row_sequence = row_sequence.data();
  Batch batch = *a.batch;
  batch.device = &device;

  std::vector<uint16_t> x(static_cast<size_t>(device.rows * p.hidden), 0x7FC0);  // padding: NaN
  std::memcpy(x.data(), a.x.data, a.x.bytes());
  std::vector<float> partial(static_cast<size_t>(device.rows * p.hidden));
  GdnArgs args = a;
  args.batch = &batch;
  reference::Carver carver(a.ws);
  cuda::GdnRecurrent s = cuda::gdn_call(carver, args);
  s.four_rows = true;
  const cuda::GdnChunks chunks = carve_chunks(carver, p, s.rows);
  cuda::model_shared_memory();
  cuda::gdn_recurrent(s, *a.weights, x.data(), partial.data(), nullptr, tactic.variant == kChunks ? &chunks : nullptr);
  std::memcpy(a.partial.data, partial.data(), a.partial.bytes());
}

size_t workspace(const Tactic&, const GdnProblem& p, int rows, int) {
  reference::Carver carver({});
  cuda::gdn_scratch(carver, p, rows + kPaddingRows);
  carve_chunks(carver, p, rows + kPaddingRows);
  return carver.used();
}

void prove(const GdnProblem& p, std::initializer_list<Variant> variants, int64_t work = kCaseWork) {
  ThreadTeam team(1);
  TrialContext context;
  context.team = &team;
  context.alive = [] {};
  context.work = work;
  Trial<GdnOp> trial(p, context);
  for (const Variant v : variants) {
    modelled::set_order(static_cast<uint64_t>(v) + 1);
    const Rounds inner = v == kChunks ? Rounds::kBf16 : Rounds::kF32;
    const Backend<GdnOp> backend{
        .name = "modelled", .numerics = {.gdn_inner = inner}, .workspace = workspace, .run = run};
    ProofEntry entry;
    Examination examination(entry);
    try {
      trial.prove(backend, {.name = "modelled", .variant = v}, examination);
      examination.finish();
      EXPECT_GT(entry.comparisons, 20'000u);
      EXPECT_LT(entry.max_error, 2) << "variant " << v;
    } catch (const ProofFailure& f) {
      ADD_FAILURE() << p.text() << " variant " << v << ": " << name_of(f.verdict.code) << " " << f.verdict.sentence;
    }
  }
}

TEST(ModelledGdn, LongerSequencesPassTheProof) {
  prove({.hidden = 64, .key_heads = 1, .value_heads = 2, .dk = 64, .dv = 32}, {kFourRows, kChunks});
}

TEST(ModelledGdn, WideHeadsInTwoPartsPassTheProof) {
  prove({.hidden = 64, .key_heads = 1, .value_heads = 3, .dk = 128, .dv = 64}, {kChunks}, 10'000'000);
}

}  // namespace
}  // namespace mettle

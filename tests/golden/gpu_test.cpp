// The embedded model and the small oracle checkpoints on a GPU, under the rule for BF16: as close to float32 as an
// independent BF16 run, another token only at a near tie. Built with CUDA; tools/gpu_check runs it where a GPU is.
#include <filesystem>
#include <map>

#include "golden_support.h"
#include "skills.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

using namespace mettle::testing;

EngineOptions gpu_options() {
  EngineOptions options = tiny_options();
  options.device = "cuda";
  options.cache_bytes = int64_t{1} << 30;
  return options;
}

std::shared_ptr<ChoiceSource> on_gpu(const std::string& backend) {
  return std::make_shared<UnprovedChoices>(backend, gpu::device(0));
}

nlohmann::json golden_prompts() { return read_json(kGolden + "/golden.json")["prompts"]; }

double transformers_error() {
  return read_json(METTLE_SOURCE_DIR "/tests/golden/bf16_run.json")["median_relative_l2"].get<double>();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

class Gpu : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, Gpu, ::testing::Values("first", "reference"));

TEST_P(Gpu, LogitsAreAsCloseAsTransformers) {
  const Safetensors tensors = Safetensors::open_file(kGolden + "/golden.safetensors");
  Watched engine(gpu_options(), on_gpu(GetParam()));
  std::vector<double> errors;
  for (const auto& p : golden_prompts()) {
    const auto run = engine.run(p["ids"].get<Ids>(), greedy_through(1));
    errors.push_back(relative_l2(run.logits.at(0), floats_of(tensors, "logits." + std::to_string(p["id"].get<int>()))));
    EXPECT_LE(errors.back(), 5 * transformers_error()) << p["name"];
  }
  std::printf("median relative L2: %.5f, transformers %.5f\n", median(errors), transformers_error());
  EXPECT_GT(median(errors), 0);
  EXPECT_LE(median(errors), 1.5 * transformers_error());
}

// docs/formats.md: bounds of about twice what a CPU is away, and both change numbers.
TEST_P(Gpu, FormatsOnRequestStayNear) {
  const Safetensors tensors = Safetensors::open_file(kGolden + "/golden.safetensors");
  const struct {
    DenseDtype dense;
    CacheFormat cache;
    double most;
  } kinds[] = {{DenseDtype::kFp8, CacheFormat::kActivation, 0.08},
               {DenseDtype::kAuto, CacheFormat::kE4M3, 0.04},
               {DenseDtype::kFp8, CacheFormat::kE4M3, 0.1}};
  for (const auto& kind : kinds) {
    EngineOptions options = gpu_options();
    options.dense = kind.dense;
    options.kv_cache = kind.cache;
    Watched engine(options, on_gpu(GetParam()));
    std::vector<double> errors;
    for (const auto& p : golden_prompts()) {
      const auto run = engine.run(p["ids"].get<Ids>(), greedy_through(1));
      errors.push_back(
          relative_l2(run.logits.at(0), floats_of(tensors, "logits." + std::to_string(p["id"].get<int>()))));
    }
    std::printf("%s, cache %s: median relative L2 %.5f\n", std::string(name_of(kind.dense)).c_str(),
                std::string(name_of(kind.cache)).c_str(), median(errors));
    EXPECT_GT(median(errors), 1.5 * transformers_error());
    EXPECT_LE(median(errors), kind.most);
  }
}

// How often a BF16 run is far off: the part of the golden prompts where transformers' own is, more than five times its
// median (1 of 24: a router's near tie).
double transformers_far() {
  const nlohmann::json prompts = read_json(METTLE_SOURCE_DIR "/tests/golden/bf16_run.json")["prompts"];
  double far = 0;
  for (const auto& p : prompts) far += p["relative_l2"].get<double>() > 5 * transformers_error();
  return far / static_cast<double>(prompts.size());
}

// Differences of two BF16 runs, step by step. A router's near tie may fall another way in a single row, and that row is
// then far off, and with it what comes later of its request, which remembers it. Such steps are listed; either of the
// two runs may have as many such requests as transformers' own BF16 run has.
class Steps {
 public:
  void add(const Logits& a, const Logits& b, const std::string& request, size_t token) {
    errors_.push_back(relative_l2(a, b));
    bool& far = far_[request];
    if (errors_.back() <= 5 * transformers_error()) return;
    far = true;
    std::printf("%s, token %zu: relative L2 %.4f\n", request.c_str(), token, errors_.back());
  }
  ~Steps() {
    if (errors_.empty()) return;
    EXPECT_LE(median(errors_), 1.5 * transformers_error());
    double far = 0;
    for (const auto& request : far_) far += request.second;
    EXPECT_LE(far, 2 * transformers_far() * static_cast<double>(far_.size())) << "of " << far_.size() << " requests";
  }

 private:
  std::vector<double> errors_;
  std::map<std::string, bool> far_;
};

// Where two greedy runs part, the margin must lie within the difference of their logits.
void expect_near_tie(const Watched::Run& a, const Watched::Run& b, const std::string& what, Steps& steps) {
  size_t at = 0;
  while (at < std::min(a.tokens.size(), b.tokens.size()) && a.tokens[at] == b.tokens[at]) ++at;
  for (size_t i = 0; i < std::min({at + 1, a.logits.size(), b.logits.size()}); ++i)
    steps.add(a.logits[i], b.logits[i], what, i);
  if (at == std::min(a.tokens.size(), b.tokens.size())) return;
  const Logits &mine = a.logits.at(at), &theirs = b.logits.at(at);
  double largest = 0;
  for (size_t v = 0; v < mine.size(); ++v) largest = std::max(largest, std::abs(double{mine[v]} - theirs[v]));
  const double margin =
      std::abs(double{theirs[static_cast<size_t>(b.tokens[at])]} - theirs[static_cast<size_t>(a.tokens[at])]);
  std::printf("%s, token %zu: %d or %d, margin %.4f, largest difference %.4f\n", what.c_str(), at, a.tokens[at],
              b.tokens[at], margin, largest);
  EXPECT_LE(margin, 2 * largest) << what;
}

TEST_P(Gpu, SkillsDifferOnlyAtNearTies) {
  const std::vector<Skill> skills = read_skills();
  Watched engine(gpu_options(), on_gpu(GetParam()));
  engine.keep(false);
  const auto runs = run_all(engine, skills, 0, skills.size());  // up to 64 in a step
  engine.keep(true);
  EngineOptions f32_options = tiny_options();
  f32_options.activation = Activation::kF32;
  Watched f32(f32_options);
  int differ = 0;
  Steps steps;
  for (size_t i = 0; i < skills.size(); ++i) {
    if (with_stop(runs[i]) == skills[i].completion) continue;
    ++differ;
    expect_near_tie(run_all(engine, skills, i, 1)[0], run_all(f32, skills, i, 1)[0], "skill " + std::to_string(i),
                    steps);
  }
  std::printf("%d of %zu skills differ\n", differ, runs.size());
  EXPECT_LE(differ, 256 / 100) << "at least 99 % must be equal";
}

TEST_P(Gpu, ChunksAndSingleRowsAgree) {
  Steps steps;
  for (const int prompt : {6, 7}) {
    std::vector<Watched::Run> runs;
    const Ids ids = golden_prompts()[static_cast<size_t>(prompt)]["ids"].get<Ids>();
    for (const int chunk : {512, 64, 7, 1}) {
      EngineOptions options = gpu_options();
      options.step_tokens = chunk;
      Watched engine(options, on_gpu(GetParam()));
      runs.push_back(engine.run(ids, greedy_through(24)));
    }
    for (size_t c = 1; c < runs.size(); ++c)
      expect_near_tie(runs[c], runs[0], "prompt " + std::to_string(prompt) + ", chunks " + std::to_string(c), steps);
  }
}

TEST_P(Gpu, MixedRequestsGiveEachItsText) {
  const nlohmann::json golden = golden_prompts();
  std::vector<Ids> prompts;
  std::vector<SamplingParams> params;
  for (int i = 0; i < 48; ++i) {
    prompts.push_back(golden[static_cast<size_t>(i) % 24]["ids"].get<Ids>());
    params.push_back(greedy_through(8 + i % 9));
  }
  Watched engine(gpu_options(), on_gpu(GetParam()));
  const auto together = engine.run(prompts, params);
  Steps steps;
  for (size_t i = 0; i < 24; ++i)
    expect_near_tie(together[i], engine.run(prompts[i], params[i]), "request " + std::to_string(i), steps);
  const EngineStats stats = engine.engine().stats();
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.slots_used, 0);
}

// Alone, among 32, and among others whose caches run full, so that it starts again: the same bits.
TEST_P(Gpu, DeterministicIsBitwiseTheSameAloneAndAmongOthers) {
  EngineOptions options = gpu_options();
  options.deterministic = true;
  options.context_length = 640;
  Mixed m = mixed_requests(32);
  for (SamplingParams& p : m.params) p.max_tokens += 50;  // over several blocks of the cache
  Watched roomy(options, on_gpu(GetParam()));
  const auto together = roomy.run(m.prompts, m.params);
  EXPECT_LT(roomy.engine().stats().steps, 300u);  // they did run together
  options.cache_tokens = 2 * 640;
  Watched tight(options, on_gpu(GetParam()));
  const auto preempted = tight.run(m.prompts, m.params);
  EXPECT_GT(tight.engine().stats().preemptions, 0u);
  for (size_t i = 0; i < m.prompts.size(); ++i) {
    const auto alone = roomy.run(m.prompts[i], m.params[i]);
    EXPECT_EQ(alone.tokens, together[i].tokens) << i;
    EXPECT_EQ(alone.logits, together[i].logits) << i;
    EXPECT_EQ(alone.tokens, preempted[i].tokens) << i;
    EXPECT_EQ(alone.logits, preempted[i].logits) << i;
  }
}

// A prompt of several chunks, the last of one row.
TEST_P(Gpu, DeterministicChunksAreTheSameAmongOthers) {
  EngineOptions options = gpu_options();
  options.deterministic = true;
  options.step_tokens = 128;
  Watched engine(options, on_gpu(GetParam()));
  Mixed m = mixed_requests(16);
  for (size_t i = 0; i < m.prompts.size(); i += 4) {
    const Ids once = m.prompts[i];
    while (m.prompts[i].size() < 257) m.prompts[i].insert(m.prompts[i].end(), once.begin(), once.end());
    m.prompts[i].resize(i == 0 ? 257 : 130 + i);
  }
  const auto together = engine.run(m.prompts, m.params);
  for (size_t i = 0; i < m.prompts.size(); i += 4) {
    const auto alone = engine.run(m.prompts[i], m.params[i]);
    EXPECT_EQ(alone.tokens, together[i].tokens) << i;
    EXPECT_EQ(alone.logits, together[i].logits) << i;
  }
}

TEST_P(Gpu, RequestsFinishInACacheOfSixContexts) {
  EngineOptions options = gpu_options();
  options.context_length = 144;
  options.cache_tokens = 6 * 144;
  Watched engine(options, on_gpu(GetParam()));
  engine.keep(false);
  std::vector<Ids> prompts;
  for (int i = 0; i < 64; ++i) {
    prompts.push_back(golden_prompts()[static_cast<size_t>(i) % 24]["ids"].get<Ids>());
    prompts.back().resize(std::min<size_t>(prompts.back().size(), 40));
  }
  const auto runs = engine.run(prompts, std::vector<SamplingParams>(64, greedy_through(100)));
  for (const auto& run : runs) EXPECT_EQ(run.tokens.size(), 100u);
  EXPECT_GT(engine.engine().stats().preemptions, 0u);
  EXPECT_EQ(engine.engine().stats().blocks_used, 0);
}

// Other head counts, odd layer counts, another family; the CPU's BF16 run is the yardstick.
TEST_P(Gpu, SmallCheckpointsAreAsCloseAsOnTheCpu) {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kTiny)) {
    const std::string path = entry.path().string();
    if (!std::filesystem::exists(path + "/golden.json")) continue;
    EngineOptions options = gpu_options();
    options.model_path = path;
    std::unique_ptr<Watched> engine;
    try {
      engine = std::make_unique<Watched>(options, on_gpu(GetParam()));
    } catch (const Error& e) {
      std::printf("%s: %s\n", entry.path().filename().c_str(), e.message.c_str());
      continue;
    }
    ++models;
    options.device = "cpu";
    Watched cpu(options, std::make_shared<UnprovedChoices>("reference"));
    options.activation = Activation::kF32;
    Watched f32(options, std::make_shared<UnprovedChoices>("reference"));
    std::vector<double> mine, theirs;
    const nlohmann::json golden = read_json(path + "/golden.json");
    for (const auto& p : golden["prompts"]) {
      const Ids ids = p["ids"].get<Ids>();
      const Logits exact = f32.run(ids, greedy_through(1)).logits.at(0);
      mine.push_back(relative_l2(engine->run(ids, greedy_through(1)).logits.at(0), exact));
      theirs.push_back(relative_l2(cpu.run(ids, greedy_through(1)).logits.at(0), exact));
    }
    std::printf("%s: median relative L2 %.5f, on the CPU %.5f\n", entry.path().filename().c_str(), median(mine),
                median(theirs));
    EXPECT_LE(median(mine), 1.5 * median(theirs)) << path;
  }
  EXPECT_GE(models, 4);
}

}  // namespace
}  // namespace mettle

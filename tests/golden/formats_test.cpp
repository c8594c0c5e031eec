// Formats that change numbers (--dense-dtype fp8, --kv-cache-dtype fp8_e4m3): how far from float32 they take the
// embedded model, and what it still answers.
#include <cstdio>

#include "golden_support.h"
#include "skills.h"

namespace mettle {
namespace {

using namespace mettle::testing;

struct Kind {
  const char* name;
  DenseDtype dense;
  CacheFormat cache;
  double most;  // median relative L2 of the logits
};
// About twice what was measured (docs/formats.md): a scale left out or used twice is hundreds of times as much.
constexpr Kind kKinds[] = {
    {"bf16", DenseDtype::kAuto, CacheFormat::kActivation, 0.0128},
    {"dense fp8", DenseDtype::kFp8, CacheFormat::kActivation, 0.08},
    {"kv fp8_e4m3", DenseDtype::kAuto, CacheFormat::kE4M3, 0.04},
    {"both", DenseDtype::kFp8, CacheFormat::kE4M3, 0.1},
};

EngineOptions options_of(const Kind& kind) {
  EngineOptions options = tiny_options();
  options.threads = 2;
  options.dense = kind.dense;
  options.kv_cache = kind.cache;
  return options;
}

TEST(Formats, LogitsStayNearTheGoldens) {
  const nlohmann::json prompts = read_json(kGolden + "/golden.json")["prompts"];
  const Safetensors tensors = Safetensors::open_file(kGolden + "/golden.safetensors");
  double before = 0;
  for (const Kind& kind : kKinds) {
    Watched engine(options_of(kind), std::make_shared<UnprovedChoices>("first"));
    std::vector<double> errors;
    for (const auto& p : prompts) {
      const auto run = engine.run(p["ids"].get<Ids>(), greedy_through(1));
      errors.push_back(
          relative_l2(run.logits.at(0), floats_of(tensors, "logits." + std::to_string(p["id"].get<int>()))));
    }
    std::sort(errors.begin(), errors.end());
    const double median = (errors[11] + errors[12]) / 2;
    std::printf("%s: median relative L2 %.5f, worst %.5f\n", kind.name, median, errors.back());
    EXPECT_LE(median, kind.most) << kind.name;
    if (before == 0)
      before = median;
    else
      EXPECT_GT(median, before) << kind.name << ": changes no number";
  }
}

void expect_skills(size_t count, double least) {
  const std::vector<Skill> skills = read_skills();
  for (const Kind& kind : kKinds) {
    Watched engine(options_of(kind), std::make_shared<UnprovedChoices>("first"));
    engine.keep(false);
    size_t equal = 0;
    for (size_t first = 0; first < count; first += 32) {
      const auto runs = run_all(engine, skills, first, std::min<size_t>(32, count - first));
      for (size_t i = 0; i < runs.size(); ++i) equal += with_stop(runs[i]) == skills[first + i].completion ? 1 : 0;
    }
    std::printf("%s: %zu of %zu skills as float32\n", kind.name, equal, count);
    EXPECT_GE(static_cast<double>(equal), least * static_cast<double>(count)) << kind.name;
  }
}

TEST(Formats, FirstSkillsAreKept) { expect_skills(32, 0.93); }
TEST(FormatsFull, SkillsAreKept) { expect_skills(256, 0.97); }

}  // namespace
}  // namespace mettle

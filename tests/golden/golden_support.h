// Runs a model through the engine and keeps what the goldens want to see: logits of every choice, tokens.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "engine/test_support.h"

namespace mettle::testing {

using Ids = std::vector<int32_t>;
using Logits = std::vector<float>;

inline const std::string kGolden = METTLE_SOURCE_DIR "/models/golden";
inline const std::string kTiny = METTLE_SOURCE_DIR "/tests/data/tiny";

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

inline Logits floats_of(const Safetensors& file, const std::string& name) {
  const StoredTensor* t = file.find(name);
  EXPECT_NE(t, nullptr) << name;
  if (t == nullptr) return {};
  Logits values(t->bytes / sizeof(float));
  std::memcpy(values.data(), t->data, t->bytes);
  return values;
}

// max|a - b| / max|b|; infinite when a has another size or is not finite.
inline double relative_error(const Logits& a, const Logits& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double most = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double diff = std::abs(double{a[i]} - b[i]);
    if (!(diff <= most)) most = std::isfinite(a[i]) ? diff : INFINITY;
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  return most / scale;
}

inline double relative_l2(const Logits& a, const Logits& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double diff = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    diff += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    scale += double{b[i]} * b[i];
  }
  return std::sqrt(diff / scale);
}

// An engine that remembers the logits of every choice, by request and position.
class Watched {
 public:
  Watched(const EngineOptions& options,
          std::shared_ptr<ChoiceSource> choices = std::make_shared<UnprovedChoices>("cpu_gemv")) {
    Probe probe;
    probe.choices = std::move(choices);
    probe.on_logits = [this](std::span<const ProbedRow> rows, const TensorView& logits) {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; keep_ && i < rows.size(); ++i) {
        const float* row = logits.as<float>() + static_cast<int64_t>(i) * logits.shape[1];
        logits_[{rows[i].request, rows[i].position}].assign(row, row + logits.shape[1]);
      }
    };
    engine_ = start_probed(options, std::move(probe));
  }

  Engine& engine() { return *engine_; }
  void keep(bool on) { keep_ = on; }

  struct Run {
    Ids tokens;
    std::vector<Logits> logits;  // of each choice
    Finish finish = Finish::kNone;
    int32_t stop_token = -1;
  };
  // All at once; each in the order given.
  std::vector<Run> run(const std::vector<Ids>& prompts, const std::vector<SamplingParams>& params) {
    std::vector<Reply> replies(prompts.size());
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < prompts.size(); ++i)
      ids.push_back(engine_->submit(prompts[i], params[i], replies[i].listener()));
    std::vector<Run> runs(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const TokenEvent& last = replies[i].wait();
      runs[i].finish = last.finish;
      runs[i].stop_token = last.stop_token;
      EXPECT_NE(last.finish, Finish::kError) << last.error;
      runs[i].tokens = replies[i].tokens();
      const std::lock_guard lock(mutex_);
      for (int p = static_cast<int>(prompts[i].size()) - 1;; ++p) {
        const auto at = logits_.find({ids[i], p});
        if (at == logits_.end()) break;
        runs[i].logits.push_back(std::move(at->second));
        logits_.erase(at);
      }
    }
    return runs;
  }
  Run run(const Ids& prompt, const SamplingParams& params) {
    return run(std::vector<Ids>{prompt}, std::vector<SamplingParams>{params})[0];
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, int>, Logits> logits_;
  std::atomic<bool> keep_{true};
  std::unique_ptr<Engine> engine_;
};

inline SamplingParams greedy_through(int max_tokens) {  // end-of-sequence ids are tokens like others
  SamplingParams params = greedy(max_tokens);
  params.ignore_eos = true;
  return params;
}

// Requests of many kinds: greedy and drawn, short and longer, some with penalties.
struct Mixed {
  std::vector<Ids> prompts;
  std::vector<SamplingParams> params;
};

inline Mixed mixed_requests(int count) {
  const nlohmann::json prompts = read_json(kGolden + "/golden.json")["prompts"];
  Mixed m;
  for (int i = 0; i < count; ++i) {
    Ids ids = prompts[static_cast<size_t>(i) % 24]["ids"].get<Ids>();
    if (ids.size() > 250) ids.resize(250);
    SamplingParams p = greedy_through(8 + i % 9);
    if (i % 3 == 1) {
      p.temperature = 0.8;
      p.top_p = 0.9;
      p.top_k = 40;
      p.seed = static_cast<uint64_t>(i);
    }
    if (i % 5 == 2) p.frequency = 0.5;
    m.prompts.push_back(std::move(ids));
    m.params.push_back(p);
  }
  return m;
}

}  // namespace mettle::testing

#include "sweep/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "load/load.h"
#include "sweep/detectors.h"
#include "sweep/gpu.h"

namespace mettle::sweep {
namespace {

constexpr std::string_view kWords[] = {"river",  "stone",  "window", "market", "letter", "garden", "engine", "winter",
                                       "copper", "signal", "forest", "bridge", "paper",  "candle", "harbor", "meadow",
                                       "silver", "thread", "ladder", "marble", "orange", "pocket", "planet", "rabbit",
                                       "saddle", "timber", "valley", "wagon",  "yellow", "anchor", "basket", "circle"};

double finite(double value) { return std::isfinite(value) ? value : 0; }

// Looks at the GPUs twice a second while it lives.
class Sampler {
 public:
  Sampler() {
    if (read_gpus(&why_not_).empty()) return;
    thread_ = std::thread([this] { run(); });
  }
  ~Sampler() { stop(); }

  void into(BenchPoint& point) {
    stop();
    if (samples_ == 0) return;
    point.power_w = power_ / samples_;
    point.power_limit_w = limit_ / samples_;
    point.sm_mhz = clock_ / samples_;
    point.busy_percent = busy_ / samples_;
  }
  const std::string& why_not() const { return why_not_; }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!done_) {
      const std::vector<GpuState> gpus = read_gpus();
      double power = 0, limit = 0, clock = 0, busy = 0;
      int used = 0;
      for (const GpuState& gpu : gpus) {  // of those that work: a machine may have others
        if (gpu.busy_percent == 0) continue;
        ++used;
        power += gpu.power_w;
        limit += gpu.power_limit_w;
        clock += gpu.sm_mhz;
        busy += gpu.busy_percent;
      }
      if (used > 0) {
        ++samples_;
        power_ += power;
        limit_ += limit;
        clock_ += clock / used;
        busy_ += busy / used;
      }
      wake_.wait_for(lock, std::chrono::milliseconds(500), [this] { return done_; });
    }
  }
  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::string why_not_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  bool done_ = false;
  int samples_ = 0;
  double power_ = 0, limit_ = 0, clock_ = 0, busy_ = 0;
};

BenchPoint point_of(int concurrency, const LoadFigures& f) {
  BenchPoint p;
  p.concurrency = concurrency;
  p.completed = f.completed;
  p.failed = f.failed;
  p.seconds = finite(f.duration_s);
  p.request_throughput = finite(f.request_throughput);
  p.output_throughput = finite(f.output_throughput);
  p.ttft_p50_ms = finite(f.ttft_ms.median);
  p.ttft_p99_ms = finite(f.ttft_ms.p99);
  p.tpot_p50_ms = finite(f.tpot_ms.median);
  p.tpot_p99_ms = finite(f.tpot_ms.p99);
  p.e2e_p50_ms = finite(f.e2e_ms.median);
  p.e2e_p99_ms = finite(f.e2e_ms.p99);
  return p;
}

}  // namespace

std::vector<std::string> random_prompts(const BenchPlan& plan, int concurrency, int count) {
  std::mt19937_64 random(static_cast<uint64_t>(concurrency));
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (int word = 0; word < plan.input_words; ++word)
      text += fmt::format("{}{}", word == 0 ? "" : " ", kWords[random() % std::size(kWords)]);
    out.push_back(std::move(text));
  }
  return out;
}

BenchResult measure(const std::string& base_url, const ServerPlan& server, const std::string& model,
                    const BenchPlan& plan, const std::atomic<bool>* stop,
                    const std::function<void(const std::string&)>& say) {
  BenchResult result;
  for (const int concurrency : plan.concurrency) {
    const int count = std::max(plan.requests, concurrency);
    const std::vector<std::string> texts =
        plan.prompts.empty() ? random_prompts(plan, concurrency, count) : plan.prompts;
    std::vector<LoadPrompt> prompts;
    for (int i = 0; i < count; ++i) {
      LoadPrompt prompt;
      prompt.text = texts[static_cast<size_t>(i) % texts.size()];
      prompt.output_tokens = plan.output_tokens;
      prompts.push_back(std::move(prompt));
    }
    LoadOptions options;
    options.base_url = base_url;
    options.model = model;
    options.chat = server.endpoint == "chat";
    options.concurrency = concurrency;
    options.request_seconds = plan.seconds;
    options.stop = stop;
    options.on_progress = [&](size_t done, size_t total) {
      say(fmt::format("measures at concurrency {}: {} of {} requests", concurrency, done, total));
    };
    Sampler sampler;
    LoadRun run;
    try {
      run = run_load(options, prompts);
    } catch (const Error& e) {
      result.error = e.message;
    }
    if (stop != nullptr && *stop) {
      result.stopped = true;
      return result;
    }
    if (!result.error.empty()) return result;
    BenchPoint point = point_of(concurrency, figures_of(run));
    sampler.into(point);
    if (!sampler.why_not().empty() && result.points.empty())
      result.notes.push_back(fmt::format("power and clocks: not readable ({})", sampler.why_not()));
    result.points.push_back(point);
    if (const std::string limit = client_limit(run); !limit.empty())
      result.notes.push_back(fmt::format("at concurrency {}: {}", concurrency, limit));
    for (const LoadRequest& request : run.requests)
      if (!request.error.empty() && result.error.empty())
        result.error = fmt::format("{} of {} requests failed at concurrency {}, the first with: {}", point.failed,
                                   point.failed + point.completed, concurrency, in_quotes(request.error, 300));
    if (!result.error.empty()) return result;
  }
  return result;
}

}  // namespace mettle::sweep

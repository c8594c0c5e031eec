// The clients: one thread and one connection for each request that may be in flight.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/thread_team.h"
#include "load/arrivals.h"
#include "load/exchange.h"
#include "load/heartbeat.h"
#include "load/load.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostClients = 1024;

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Every client holds a socket.
void raise_file_limit(int clients) {
  rlimit limit = {};
  const auto wanted = static_cast<rlim_t>(clients) * 2 + 128;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

void check(const LoadOptions& o, const std::vector<LoadPrompt>& prompts) {
  if (o.concurrency < 1 || o.concurrency > kMostClients)
    fail(Code::kInvalidRequest, fmt::format("concurrency: must be in 1..{}, got {}", kMostClients, o.concurrency));
  if (o.arrival != Arrival::kClosed && !(o.rate > 0 && o.rate <= 1e6))
    fail(Code::kInvalidRequest, fmt::format("rate: must be above 0 and at most 1e6 requests/s, got {}", o.rate));
  if (o.arrival == Arrival::kGamma && !(o.burstiness >= 0.01 && o.burstiness <= 1000))
    fail(Code::kInvalidRequest, fmt::format("burstiness: must be in 0.01..1000, got {}", o.burstiness));
  if (!(o.request_seconds > 0 && o.request_seconds <= 86400))
    fail(Code::kInvalidRequest, fmt::format("request_seconds: must be in 0..86400, got {}", o.request_seconds));
  if (std::any_of(o.api_key.begin(), o.api_key.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    fail(Code::kInvalidRequest, "api_key: must have no control characters");
  for (size_t i = 0; i < prompts.size(); ++i)
    if (prompts[i].output_tokens < 1)
      fail(Code::kInvalidRequest,
           fmt::format("prompts[{}].output_tokens: must be at least 1, got {}", i, prompts[i].output_tokens));
}

// The prompts of one conversation, in order, or one prompt.
std::vector<std::vector<size_t>> units_of(const std::vector<LoadPrompt>& prompts) {
  std::vector<std::vector<size_t>> units;
  std::vector<std::pair<int, size_t>> begun;  // conversation, unit; sorted
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int conversation = prompts[i].conversation;
    if (conversation < 0) {
      units.push_back({i});
      continue;
    }
    const auto at = std::lower_bound(begun.begin(), begun.end(), std::pair{conversation, size_t{0}});
    if (at != begun.end() && at->first == conversation) {
      units[at->second].push_back(i);
    } else {
      begun.insert(at, {conversation, units.size()});
      units.push_back({i});
    }
  }
  return units;
}

class Load {
 public:
  Load(const LoadOptions& options, const std::vector<LoadPrompt>& prompts)
      : options_(options), prompts_(prompts), units_(units_of(prompts)) {}

  LoadRun run() {
    raise_file_limit(options_.concurrency);
    target_.options = &options_;
    target_.root = root_of(options_.base_url);
    {
      HttpClient client;
      target_.model = find_served_model(client, options_, target_.root);
    }
    due_ = arrival_times(units_.size(), options_.arrival, options_.rate, options_.burstiness, options_.seed);
    run_.requests.resize(prompts_.size());
    run_.model = target_.model;
    run_.url = target_.root;
    run_.client_cores = usable_cores();
    start_threads(std::min(static_cast<size_t>(options_.concurrency), units_.size()));
    const double cpu = cpu_seconds();
    {
      const std::lock_guard lock(mutex_);
      start_ = Clock::now();
      started_ = true;
    }
    change_.notify_all();
    Heartbeat heartbeat;
    for (std::thread& thread : threads_) thread.join();
    run_.seconds = seconds_since(start_);
    run_.client_cpu = run_.seconds > 0 ? (cpu_seconds() - cpu) / run_.seconds : 0;
    run_.client_lag_ms = quantiles_of(heartbeat.stop()).p99;
    run_.late_ms = quantiles_of(std::move(late_ms_)).p99;
    if (failure_) std::rethrow_exception(failure_);
    return std::move(run_);
  }

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }

  void start_threads(size_t count) {
    try {
      for (size_t i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      {
        const std::lock_guard lock(mutex_);
        next_ = units_.size();
        started_ = true;
      }
      change_.notify_all();
      for (std::thread& thread : threads_) thread.join();
      fail(Code::kDevice, fmt::format("clients: {} threads must start, {} did: {}", count, threads_.size(), e.what()));
    }
  }

  void work() {
    try {
      HttpClient client;
      bool fresh = true;
      for (size_t unit; next(unit, fresh); fresh = false) converse(client, units_[unit]);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = units_.size();
    }
  }

  // Takes the next unit and waits until it is due. Clients that are free have taken theirs before that, so a unit that
  // a client comes to after it was due has waited for one, unless the client is `fresh`: then its thread began late.
  bool next(size_t& unit, bool fresh) {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [&] { return started_; });
    if (next_ >= units_.size()) return false;
    unit = next_++;
    if (options_.arrival == Arrival::kClosed) return true;
    const auto due = start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due_[unit]));
    if (!fresh && Clock::now() > due) {
      ++run_.held_back;
      return true;
    }
    lock.unlock();
    while (!stopped() && Clock::now() < due)
      std::this_thread::sleep_until(std::min(due, Clock::now() + std::chrono::milliseconds(200)));
    lock.lock();
    late_ms_.push_back(std::max(0.0, std::chrono::duration<double, std::milli>(Clock::now() - due).count()));
    return true;
  }

  void converse(HttpClient& client, const std::vector<size_t>& unit) {
    std::vector<Turn> turns;
    std::string broken;
    for (const size_t index : unit) {
      LoadRequest& request = run_.requests[index];
      turns.push_back({prompts_[index].text, ""});
      const double start = seconds_since(start_);
      if (stopped()) {
        request.error_kind = "stopped";
        request.error = "stopped before it was sent";
      } else if (!broken.empty()) {
        request.error_kind = "earlier_turn";
        request.error = "not sent, an earlier turn failed: " + broken;
      } else {
        request = exchange(client, target_, turns, prompts_[index].output_tokens, turns.back().answer);
      }
      request.start_s = start;
      if (broken.empty()) broken = request.error;
      tell();
    }
  }

  void tell() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (options_.on_progress != nullptr) options_.on_progress(done_, prompts_.size());
  }

  const LoadOptions& options_;
  const std::vector<LoadPrompt>& prompts_;
  const std::vector<std::vector<size_t>> units_;
  LoadTarget target_;
  std::vector<double> due_;
  LoadRun run_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable change_;
  bool started_ = false;
  Clock::time_point start_;
  size_t next_ = 0, done_ = 0;
  std::vector<double> late_ms_;
  std::exception_ptr failure_;
};

}  // namespace

LoadRun run_load(const LoadOptions& options, const std::vector<LoadPrompt>& prompts) {
  check(options, prompts);
  return Load(options, prompts).run();
}

std::string client_limit(const LoadRun& run, const ClientLimits& limits) {
  if (run.client_cpu > limits.cpu * run.client_cores)
    return fmt::format("the client used {:.2f} of its {} cores, more than {:.0f} %", run.client_cpu, run.client_cores,
                       100 * limits.cpu);
  if (run.client_lag_ms > limits.lag_ms)
    return fmt::format("the client's threads ran {:.1f} ms late at one moment of a hundred, more than {:.1f} ms",
                       run.client_lag_ms, limits.lag_ms);
  if (run.late_ms > limits.lag_ms)
    return fmt::format("one request of a hundred was sent {:.1f} ms after it was due, more than {:.1f} ms", run.late_ms,
                       limits.lag_ms);
  return "";
}

}  // namespace mettle

#include "sweep/cell_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "base/error.h"
#include "diagnose/diagnose.h"
#include "diagnose/signatures.h"
#include "net/http_client.h"
#include "sweep/bench.h"
#include "sweep/canary.h"
#include "sweep/cgroup.h"
#include "sweep/gpu.h"
#include "sweep/machine.h"
#include "sweep/matrix.h"
#include "sweep/server_process.h"

namespace mettle::sweep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kProbeEvery = 0.25;
constexpr double kProbeSeconds = 5;                 // for one look at the ready path
constexpr int kHangSeconds = 3600;                  // the plan's word that a silent server hangs
constexpr uint64_t kGpuSlack = uint64_t{64} << 20;  // of memory that drivers keep
constexpr double kDyingSeconds = 2;                 // from a failed request to the end of its server
constexpr double kGpuSeconds = 10;                  // for a driver to give memory back

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class CellRun {
 public:
  CellRun(const Cell& cell, std::string folder, const CellContext& context)
      : cell_(cell), folder_(std::move(folder)), c_(context) {
    result_.name = cell.name;
  }

  std::optional<CellResult> run() {
    before();
    if (result_.stage.empty()) launch();
    if (server_ != nullptr) {
      if (wait_ready() && canary() && bench()) health();
      if (!stopped()) died_of_itself();
      stop_server();
    }
    if (stopped()) return std::nullopt;
    if (result_.stage.empty())
      result_.outcome = Outcome::kWorks;
    else
      explain();
    result_.seconds = std::round(since(start_) * 1000) / 1000;
    return result_;
  }

 private:
  bool stopped() const { return c_.stop != nullptr && *c_.stop; }

  bool failed(const std::string& stage, const std::string& cause, const std::string& sentence) {
    if (result_.stage.empty()) {
      result_.stage = stage;
      result_.cause = cause;
      result_.sentence = sentence;
    }
    return false;
  }

  void before() {
    for (const Process& process : c_.family.end_all(10))
      failed("before", "LEFTOVER_OR_TENANT",
             fmt::format("process {} ({}) of an earlier cell cannot be ended", process.id.pid, process.name));
    port_ = cell_.server.port != 0 ? cell_.server.port : pick_port();
    if (!port_is_free(port_))
      failed("before", "LEFTOVER_OR_TENANT",
             fmt::format("port {} is taken by {}, which this sweep did not start", port_, port_owner(port_)));
    shared_ = shared_files();
    oom_kills_ = oom_kills();
    gpus_ = read_gpus();
    for (size_t i = 0; i < gpus_.size(); ++i)
      for (const pid_t pid : gpus_[i].processes)
        result_.notes.push_back(fmt::format("GPU {} is also used by process {} ({}), {} MiB are taken", i, pid,
                                            command_line(pid), gpus_[i].memory_used >> 20));
  }

  void launch() {
    const Places places{port_, folder_, c_.program};
    result_.command = words_of(c_.plan, cell_.server, places);
    result_.env = environment_of(c_.plan, cell_.server, places);
    Launch launch{result_.command,      result_.env,       c_.plan.folder,
                  folder_ + "/log.txt", c_.plan.log_bytes, ready_pattern(cell_.server)};
    start_ = Clock::now();
    try {
      server_ = std::make_unique<ServerProcess>(launch, c_.family);
    } catch (const Error& e) {
      failed("launch", "NOT_STARTED", e.message);
    }
  }

  // 2xx of the ready path.
  bool healthy() {
    HttpRequest request;
    request.url = base() + cell_.server.ready;
    request.connect_seconds = kProbeSeconds;
    request.total_seconds = kProbeSeconds;
    request.body_limit = 1 << 16;
    request.stop = c_.stop;
    const HttpReply reply = client_.send(request);
    probe_ = reply.end == HttpEnd::kDone ? fmt::format("status {}", reply.status) : reply.error;
    return reply.ok() || (reply.end == HttpEnd::kTooLarge && reply.status / 100 == 2);
  }

  bool wait_ready() {
    const bool by_path = ready_pattern(cell_.server).empty();
    auto told = start_ - std::chrono::seconds(1), probed = told;
    while (!stopped()) {
      if (server_->ended()) return failed("ready", "", "");
      bool ready = server_->saw_ready();
      if (by_path && since(probed) >= kProbeEvery) {
        ready = healthy();
        probed = Clock::now();
      }
      if (ready) {
        result_.ready_seconds = std::round(since(start_) * 1000) / 1000;
        return true;
      }
      if (server_->silent_seconds() >= cell_.server.silence_seconds) {
        silent_ = true;
        return failed("ready", "",
                      fmt::format("it wrote nothing for {} s and is not ready; its last line: {}",
                                  cell_.server.silence_seconds, server_->last_line()));
      }
      if (since(start_) >= cell_.server.deadline_seconds)
        return failed("ready", "",
                      fmt::format("it is not ready after {} s; its last line: {}", cell_.server.deadline_seconds,
                                  server_->last_line()));
      if (since(told) >= 0.5) {
        look_around();
        c_.say(fmt::format("loads, {:.0f} s: {}", since(start_), server_->last_line()));
        told = Clock::now();
      }
      usleep(50'000);
    }
    return false;
  }

  bool canary() {
    c_.say("answers the canary");
    look_around();
    const CanaryResult asked = ask_canary(base(), cell_.server, c_.plan.canary, c_.references, c_.stop);
    result_.model = asked.model;
    for (const Answer& a : asked.answers)
      result_.answers.push_back({a.prompt, a.text.substr(0, 2000), a.finding ? a.finding->sentence : ""});
    result_.notes.insert(result_.notes.end(), asked.notes.begin(), asked.notes.end());
    look_around();
    if (asked.stopped) return false;
    reply_ = asked.reply;
    if (asked.finding) return failed("canary", asked.finding->cause, asked.finding->sentence);
    return true;
  }

  bool bench() {
    const BenchResult figures = measure(base(), cell_.server, result_.model, c_.plan.bench, c_.stop, c_.say);
    result_.bench = figures.points;
    result_.notes.insert(result_.notes.end(), figures.notes.begin(), figures.notes.end());
    look_around();
    if (figures.stopped) return false;
    if (!figures.error.empty()) return failed("bench", "REQUESTS_FAILED", figures.error);
    return true;
  }

  bool health() {
    if (server_->ended()) return failed("health", "", "");
    if (ready_pattern(cell_.server).empty() && !healthy() && !stopped())
      return failed("health", "UNHEALTHY",
                    fmt::format("it was ready and is no more: {} answers {}", cell_.server.ready, probe_));
    return true;
  }

  // What a dying server does to requests is seen before its end is: a moment tells which of the two it was.
  void died_of_itself() {
    const bool may_be_dying =
        result_.cause == "NO_ANSWER" || result_.cause == "REQUESTS_FAILED" || result_.cause == "UNHEALTHY";
    for (const auto start = Clock::now(); may_be_dying && !server_->ended() && since(start) < kDyingSeconds;)
      usleep(20'000);
    exit_ = server_->ended();
    if (!exit_) return;
    result_.end = exit_->text();
    failed("health", "", "");
  }

  void stop_server() {
    c_.say("stops");
    look_around();
    std::string holder;
    const ServerProcess::Stopped stop = server_->stop(cell_.server.stop_seconds, c_.hurry, [&] {
      if (port_has_listener(port_)) holder = port_owner(port_);
    });
    server_->finish_log();
    result_.log_bytes = server_->log_bytes();
    result_.log_left_out = server_->log_left_out();
    if (server_->log_damaged()) result_.notes.push_back("its log could not be written whole; the disk may be full");
    if (result_.log_left_out > 0)
      result_.notes.push_back(fmt::format("it wrote {} bytes; {} of them, from the middle, were not kept",
                                          result_.log_bytes, result_.log_left_out));
    if (stop.forced)
      result_.notes.push_back(
          fmt::format("it did not end {} s after SIGTERM and was killed", cell_.server.stop_seconds));
    result_.leftovers = stop.left;
    for (const std::string& process : stop.immortal) result_.leftovers.push_back(process + ", which cannot be ended");
    for (const std::string& name : remove_left_shared_files(shared_, used_shared_))
      result_.leftovers.push_back("/dev/shm/" + name);
    if (!port_is_free(port_))
      result_.leftovers.push_back(fmt::format("port {}, held by {}", port_, port_owner(port_)));
    else if (!holder.empty())
      result_.leftovers.push_back(fmt::format("port {}, held by {}", port_, holder.substr(0, holder.find(" ("))));
    gpu_memory();
    server_.reset();
    if (!result_.leftovers.empty() && result_.stage.empty())
      failed("stop", "LEFTOVER_OR_TENANT",
             fmt::format("{} s after SIGTERM it had left behind: {}; ended and removed now", cell_.server.stop_seconds,
                         fmt::join(result_.leftovers, "; ")));
  }

  void gpu_memory() {
    if (gpus_.empty()) return;
    for (const auto start = Clock::now();; usleep(200'000)) {
      const std::vector<GpuState> now = read_gpus();
      std::vector<std::string> more;
      for (size_t i = 0; i < now.size() && i < gpus_.size(); ++i)
        if (now[i].memory_used > gpus_[i].memory_used + kGpuSlack)
          more.push_back(fmt::format("{} MiB of GPU {}", (now[i].memory_used - gpus_[i].memory_used) >> 20, i));
      if (more.empty()) return;
      if (since(start) < kGpuSeconds) continue;
      result_.leftovers.insert(result_.leftovers.end(), more.begin(), more.end());
      return;
    }
  }

  // Why, from the log, the kernel and what was seen.
  void explain() {
    std::string kernel = kernel_.read_new();
    const std::optional<uint64_t> kills = oom_kills();
    if (kills && oom_kills_ && *kills > *oom_kills_)
      result_.notes.push_back(
          fmt::format("the control group counts {} more out-of-memory kills", *kills - *oom_kills_));
    if (!kernel.empty()) write_whole(folder_ + "/kernel.txt", kernel);
    if (result_.stage == "before" || result_.stage == "launch" || result_.stage == "stop") {
      result_.confidence = "high";
      return;
    }
    diagnose::Options options;
    options.device = c_.plan.device;
    if (exit_) options.exit_code = exit_->signal != 0 ? 128 + exit_->signal : exit_->code;
    if (silent_) options.silent_s = kHangSeconds;
    if (!kernel.empty()) options.dmesg = {folder_ + "/kernel.txt"};
    diagnose::Diagnoser diagnoser(options);
    diagnoser.read_path(folder_ + "/log.txt");
    if (!reply_.empty() && result_.cause == "NO_ANSWER") diagnoser.read_text(reply_ + "\n", "reply");
    const diagnose::Diagnosis d = diagnoser.finish();
    const bool told = !d.healthy() && d.cause != "UNKNOWN" && (!exactly_seen() || is_root(d));
    if (!told && !d.healthy() && d.cause != "UNKNOWN")
      result_.notes.push_back(fmt::format("its log also tells of {}: {}", d.cause, d.sentence));
    result_.phase = d.phase;
    result_.engine = d.engine;
    const std::string seen = result_.sentence;
    if (told) {
      result_.cause = d.cause;
      result_.confidence = std::string(diagnose::name_of(d.confidence));
      result_.sentence = seen.empty() ? d.sentence : fmt::format("{} Seen: {}", d.sentence, seen);
      for (const diagnose::Line& line : d.evidence)
        result_.evidence.push_back(
            fmt::format("{}:{}: {}", std::filesystem::path(line.file).filename().string(), line.line, line.text));
      result_.remedy = d.remedy;
    } else if (result_.cause.empty()) {
      result_.cause = exit_ ? "UNKNOWN" : silent_ ? "HANG" : "NOT_READY";
      result_.confidence = "low";
      if (exit_) result_.sentence = d.healthy() ? "its log shows nothing wrong" : d.sentence;
    } else {
      result_.confidence = "high";  // it was seen here, not concluded
    }
    if (exit_) result_.sentence = fmt::format("it ended by itself with {}: {}", exit_->text(), result_.sentence);
    if (kills && oom_kills_ && *kills > *oom_kills_ && exit_ && exit_->signal == 9 && !told) {
      result_.cause = "HOST_OOM";
      result_.confidence = "high";
    }
  }

  // The canary saw it in an answer: only the log's own statement of what broke is closer to the root.
  bool exactly_seen() const { return result_.stage == "canary" && result_.cause != "NO_ANSWER"; }
  static bool is_root(const diagnose::Diagnosis& d) {
    if (d.confidence == diagnose::Confidence::kLow) return false;
    for (const diagnose::Signature& row : diagnose::table().signatures)
      if (row.id == d.signature) return row.kind == diagnose::Kind::kCause;
    return false;
  }

  void look_around() {
    std::vector<pid_t> pids;
    for (const Process& process : server_->members()) pids.push_back(process.id.pid);
    note_shared_files(pids, used_shared_);
  }
  std::string base() const { return fmt::format("http://127.0.0.1:{}", port_); }

  const Cell& cell_;
  const std::string folder_;
  const CellContext& c_;
  CellResult result_;
  HttpClient client_;
  std::unique_ptr<ServerProcess> server_;
  Clock::time_point start_ = Clock::now();
  int port_ = 0;
  bool silent_ = false;
  std::string probe_, reply_;
  std::optional<Exit> exit_;
  SharedFiles shared_;
  std::set<std::string> used_shared_;
  std::optional<uint64_t> oom_kills_;
  std::vector<GpuState> gpus_;
  KernelLog kernel_;
};

}  // namespace

std::optional<CellResult> run_cell(const Cell& cell, const std::string& folder, const CellContext& context) {
  return CellRun(cell, folder, context).run();
}

}  // namespace mettle::sweep

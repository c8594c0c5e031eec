#include "sweep/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "sweep/canary.h"
#include "sweep/cell_run.h"
#include "sweep/cgroup.h"
#include "sweep/matrix.h"
#include "sweep/processes.h"
#include "sweep/report.h"
#include "sweep/server_process.h"
#include "sweep/skips.h"

namespace mettle::sweep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// One sweep at a time in a folder.
class Lock {
 public:
  explicit Lock(const std::string& folder) {
    const std::string path = folder + "/lock";
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail(Code::kDevice, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      fail(Code::kDevice, fmt::format("{}: another sweep runs in this folder", folder));
    }
  }
  ~Lock() { close(fd_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int fd_ = -1;
};

// The sweep's own number, kept in its folder: what it started carries it, also after it was killed.
std::string mark_of(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/sweep.json", text = read_small(path);
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_object() && json.contains("mark") && json["mark"].is_string()) {
    const auto mark = json["mark"].get<std::string>();
    const bool plain = std::all_of(mark.begin(), mark.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
    if (mark.size() == 24 && plain) return mark;
  }
  std::random_device random;
  const std::string mark = fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
  write_whole(path, Json({{"sweep", name}, {"mark", mark}}).dump(2) + "\n");
  return mark;
}

std::vector<Row> rows_of(const Plan& plan, const Options& options) {
  std::vector<Row> rows;
  std::vector<std::string> unknown = options.only;
  for (const Cell& cell : plan.cells) {
    const auto named = [&](const std::string& word) {
      return word == cell.name || word == std::to_string(cell.number);
    };
    Row row;
    row.cell = &cell;
    row.wanted = options.only.empty() || std::any_of(options.only.begin(), options.only.end(), named);
    row.result.name = cell.name;
    std::erase_if(unknown, named);
    rows.push_back(std::move(row));
  }
  if (!unknown.empty()) {
    std::string names;
    for (size_t i = 0; i < plan.cells.size() && i < 20; ++i)
      names += fmt::format("{}{} \"{}\"", i == 0 ? "" : ", ", plan.cells[i].number, plan.cells[i].name);
    fail(Code::kInvalidRequest, fmt::format("--only: no cell \"{}\"; there are {}", unknown[0], names));
  }
  return rows;
}

// A night without skips is better than none.
std::vector<RefusedWord> refused_by_device(const Plan& plan, const Options& options) {
  if (plan.device.empty() || !plan.skip_refused) return {};
  try {
    return ask_explain(options.program, plan.device, model_of(plan, plan.server));
  } catch (const Error& e) {
    options.on_note(fmt::format("cells are not checked against {}: {}", plan.device, e.message));
    return {};
  }
}

std::vector<Done> done_of(const std::vector<Row>& rows) {
  std::vector<Done> done;
  for (const Row& row : rows)
    if (row.state == RowState::kDone) done.push_back({row.cell, &row.result});
  return done;
}

bool skip_row(const Plan& plan, const std::vector<RefusedWord>& refused, const std::vector<Row>& rows, Row& row) {
  const std::optional<Skip> skip = find_skip(plan, *row.cell, refused, done_of(rows));
  if (!skip) return false;
  row.state = RowState::kDone;
  row.result.outcome = Outcome::kSkipped;
  row.result.stage = "skip";
  row.result.cause = skip->cause;
  row.result.sentence = skip->sentence;
  return true;
}

std::string folder_of(const Options& options, const Cell& cell) { return options.out + "/cells/" + cell.folder; }

// A result of an earlier run, when nothing that decides it has changed.
bool keep_row(const Plan& plan, const Options& options, Row& row) {
  const std::string folder = folder_of(options, *row.cell);
  const Json cell = Json::parse(read_small(folder + "/cell.json"), nullptr, false);
  if (!cell.is_object() || !cell.contains("identity") || cell["identity"] != identity(plan, *row.cell)) return false;
  std::optional<CellResult> result = result_of(read_small(folder + "/result.json"));
  if (!result) return false;
  row.result = std::move(*result);
  row.result.name = row.cell->name;
  row.state = RowState::kDone;
  row.kept = true;
  return true;
}

// Its folder without results of earlier runs. Only files that a sweep writes are removed.
std::string fresh_folder(const Plan& plan, const Options& options, const Cell& cell) {
  const std::string folder = folder_of(options, cell);
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) fail(Code::kDevice, fmt::format("{}: cannot be made: {}", folder, ec.message()));
  for (const char* name : {"result.json", "log.txt", "kernel.txt"}) fs::remove(folder + "/" + name, ec);
  write_whole(folder + "/cell.json",
              Json({{"name", cell.name}, {"command", cell.server.command}, {"identity", identity(plan, cell)}})
                      .dump(2, ' ', false, Json::error_handler_t::replace) +
                  "\n");
  return folder;
}

// What a killed sweep of this folder left running: by its mark, and by its control group.
void end_leftovers(const Family& family, const Options& options) {
  const Cgroup group(group_name(family));
  const std::vector<Process> left = family.members(group.members());
  if (left.empty()) return;
  options.on_note(fmt::format("{} processes of this sweep, which was killed, still ran; they are ended", left.size()));
  group.kill();
  family.end_all(10, group.members());
}

void prepare_out(const Plan& plan, const Options& options) {
  std::error_code ec;
  if (fs::exists(options.out, ec) && !fs::is_directory(options.out, ec))
    fail(Code::kInvalidRequest, fmt::format("--out: must be a folder, {} is none", options.out));
  const bool empty = !fs::exists(options.out, ec) || fs::is_empty(options.out, ec);
  if (!empty && !fs::exists(options.out + "/sweep.json", ec) && !fs::exists(options.out + "/lock", ec))
    fail(Code::kInvalidRequest,
         fmt::format("--out: {} holds other things and no sweep; name an empty or a new folder", options.out));
  fs::create_directories(options.out + "/cells", ec);
  if (ec) fail(Code::kDevice, fmt::format("{}: cannot be made: {}", options.out, ec.message()));
  // A plan of another name would mix its cells with these.
  const Json json = Json::parse(read_small(options.out + "/sweep.json"), nullptr, false);
  if (json.is_object() && json.contains("sweep") && json["sweep"] != plan.name)
    fail(Code::kInvalidRequest, fmt::format("--out: {} holds the sweep {}, the plan is called \"{}\"", options.out,
                                            json["sweep"].dump(), plan.name));
}

double figure(Goal goal, const BenchPoint& p) {
  switch (goal) {
    case Goal::kThroughput:
      return p.output_throughput;
    case Goal::kTpot:
      return -p.tpot_p50_ms;
    case Goal::kTtft:
      return -p.ttft_p50_ms;
  }
  return 0;
}

// The point that the goal looks at.
const BenchPoint* point_of(Goal goal, const CellResult& result) {
  if (result.bench.empty()) return nullptr;
  return goal == Goal::kThroughput ? &result.bench.back() : &result.bench.front();
}

}  // namespace

int find_winner(const Plan& plan, const std::vector<Row>& rows) {
  int best = -1;
  double best_figure = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].state != RowState::kDone || rows[i].result.outcome != Outcome::kWorks) continue;
    const BenchPoint* point = point_of(plan.goal, rows[i].result);
    const double value = point == nullptr ? -rows[i].result.ready_seconds : figure(plan.goal, *point);
    if (best >= 0 && value <= best_figure) continue;
    best = static_cast<int>(i);
    best_figure = value;
  }
  return best;
}

std::string goal_text(const Plan& plan, const CellResult& result) {
  const BenchPoint* p = point_of(plan.goal, result);
  if (p == nullptr) return "";
  switch (plan.goal) {
    case Goal::kThroughput:
      return fmt::format("{:.1f} tok/s at {}", p->output_throughput, p->concurrency);
    case Goal::kTpot:
      return fmt::format("{:.1f} ms a token at {}", p->tpot_p50_ms, p->concurrency);
    case Goal::kTtft:
      return fmt::format("{:.1f} ms to the first token at {}", p->ttft_p50_ms, p->concurrency);
  }
  return "";
}

std::vector<Row> dry_run(const Plan& plan, const Options& options) {
  std::vector<Row> rows = rows_of(plan, options);
  const std::vector<RefusedWord> refused = refused_by_device(plan, options);
  for (Row& row : rows)
    if (!keep_row(plan, options, row) && row.wanted) skip_row(plan, refused, rows, row);
  return rows;
}

Summary run_sweep(const Plan& plan, const Options& options) {
  Summary summary;
  summary.rows = rows_of(plan, options);
  prepare_out(plan, options);
  const Lock lock(options.out);
  Family family(mark_of(options.out, plan.name));
  end_leftovers(family, options);
  const std::vector<RefusedWord> refused = refused_by_device(plan, options);
  const auto stopped = [&] { return options.stop != nullptr && *options.stop; };
  std::vector<Row>& rows = summary.rows;
  for (Row& row : rows) keep_row(plan, options, row);
  options.on_change(rows);
  std::vector<std::string> references;
  const bool work = std::any_of(rows.begin(), rows.end(),
                                [](const Row& row) { return row.wanted && row.state == RowState::kWaiting; });
  if (work) references = reference_answers(plan.canary, plan.server, options.stop);
  for (Row& row : rows) {
    if (stopped()) break;
    if (options.stop_on_winner && find_winner(plan, rows) >= 0) break;
    if (row.state == RowState::kDone || !row.wanted) continue;
    if (skip_row(plan, refused, rows, row)) {
      options.on_change(rows);
      continue;
    }
    const std::string folder = fresh_folder(plan, options, *row.cell);
    row.state = RowState::kRunning;
    row.now = "starts";
    options.on_change(rows);
    CellContext context{plan, family, options.program, references, options.stop, options.hurry, {}};
    context.say = [&](const std::string& now) {
      row.now = now;
      options.on_change(rows);
    };
    std::optional<CellResult> result = run_cell(*row.cell, folder, context);
    if (!result) {
      row.state = RowState::kWaiting;
      break;
    }
    write_whole(folder + "/result.json", to_json(*result));
    row.result = std::move(*result);
    row.state = RowState::kDone;
    options.on_change(rows);
    write_reports(plan, rows, find_winner(plan, rows), options.out);
  }
  summary.stopped = stopped();
  summary.winner = find_winner(plan, rows);
  write_reports(plan, rows, summary.winner, options.out);
  return summary;
}

}  // namespace mettle::sweep

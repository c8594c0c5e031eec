// mettle sweep: a night of servers, unattended.
#include "sweep/sweep.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/model_flags.h"
#include "sweep/report.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// The first signal ends the cell that runs, the second one without waiting for a graceful end. Neither leaves a server.
std::atomic<bool> g_stop{false}, g_hurry{false};
std::atomic<int> g_signal{0};

void on_signal(int number) {
  g_signal = number;
  if (g_stop.exchange(true)) g_hurry = true;
}

void install_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    if (number != SIGHUP || hangup.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // nohup: a whole night
  signal(SIGPIPE, SIG_IGN);  // a reader that went away must not end the sweep before its server
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}
size_t terminal_rows() {
  winsize size{};
  return ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

// Cut to a number of characters, not bytes.
std::string cut(const std::string& text, size_t width) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (++characters > width) return text.substr(0, i);
  }
  return text;
}

std::string table_text(const sweep::Plan& plan, const std::vector<sweep::Row>& rows, int winner, size_t what_width) {
  const auto texts = sweep::report_table(plan, rows, winner);
  Table table(texts[0]);
  for (size_t i = 1; i < texts.size(); ++i) {
    std::vector<std::string> row = texts[i];
    row[1] = cut(row[1], 44);
    row.back() = cut(row.back(), what_width);
    table.add(std::move(row));
  }
  return table.text({0, 4, 5});
}

// On a terminal a table that is drawn anew; elsewhere one line for each cell.
class View {
 public:
  explicit View(const sweep::Plan& plan) : plan_(plan), live_(is_terminal(2)) {}

  void show(const std::vector<sweep::Row>& rows) {
    if (live_ && rows.size() + 3 < terminal_rows())
      draw(rows);
    else
      tell(rows);
  }
  void note(const std::string& text) {
    say(fmt::format("{}\n", text));
    drawn_ = 0;
  }
  void end(const std::vector<sweep::Row>& rows) {
    if (drawn_ > 0) {
      last_ = {};
      draw(rows);
    }
  }

 private:
  void draw(const std::vector<sweep::Row>& rows) {
    size_t done = 0;
    for (const sweep::Row& row : rows) done += row.state == sweep::RowState::kDone;
    const auto now = std::chrono::steady_clock::now();
    if (done == done_ && now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    done_ = done;
    const size_t columns = terminal_columns();
    std::string text = drawn_ > 0 ? fmt::format("\x1b[{}A", drawn_) : "";
    const std::string table = table_text(plan_, rows, -1, columns);
    drawn_ = 0;
    for (size_t at = 0; at < table.size();) {
      const size_t end = std::min(table.find('\n', at), table.size());
      text += "\x1b[2K" + cut(table.substr(at, end - at), columns - 1) + "\n";
      ++drawn_;
      at = end + 1;
    }
    say(text);
  }

  void tell(const std::vector<sweep::Row>& rows) {
    told_.resize(rows.size(), sweep::RowState::kWaiting);
    for (size_t i = 0; i < rows.size(); ++i) {
      const sweep::Row& row = rows[i];
      if (row.state == told_[i]) continue;
      told_[i] = row.state;
      const std::string head = fmt::format("[{}/{}] {}", row.cell->number, rows.size(), row.cell->name);
      if (row.state == sweep::RowState::kRunning) say(fmt::format("{}: runs\n", head));
      if (row.state != sweep::RowState::kDone) continue;
      const std::string figure = sweep::goal_text(plan_, row.result);
      say(fmt::format("{}: {}{}{}{}{}\n", head, row.kept ? "kept, " : "", name_of(row.result.outcome),
                      row.result.cause.empty() ? "" : " " + row.result.cause, figure.empty() ? "" : ", " + figure,
                      row.result.sentence.empty() ? "" : ": " + row.result.sentence));
    }
  }

  const sweep::Plan& plan_;
  const bool live_;
  size_t drawn_ = 0, done_ = 0;  // lines on the screen; cells that were done then
  std::chrono::steady_clock::time_point last_;
  std::vector<sweep::RowState> told_;
};

std::string summary_json(const sweep::Plan& plan, const sweep::Summary& summary, const std::string& out) {
  Json cells = Json::array();
  for (const sweep::Row& row : summary.rows) {
    Json cell = {{"number", row.cell->number}, {"folder", row.cell->folder}, {"kept", row.kept}};
    const bool done = row.state == sweep::RowState::kDone;
    cell["outcome"] = done ? name_of(row.result.outcome) : "not run";
    if (done) {
      const Json result = Json::parse(to_json(row.result));
      for (const auto& [key, value] : result.items())
        if (key != "outcome") cell[key] = value;
    } else {
      cell["name"] = row.cell->name;
    }
    cells.push_back(std::move(cell));
  }
  const Json winner = summary.winner < 0 ? Json() : Json(summary.rows[static_cast<size_t>(summary.winner)].cell->name);
  const Json all = {
      {"sweep", plan.name}, {"out", out}, {"stopped", summary.stopped}, {"winner", winner}, {"cells", cells}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

struct SweepArguments {
  std::string plan, out;
  std::vector<std::string> only;
  bool stop_on_winner = false, json = false, dry_run = false;
};

int print_dry_run(const sweep::Plan& plan, const sweep::Options& options, bool json) {
  sweep::Summary summary;
  summary.rows = sweep::dry_run(plan, options);
  if (json) {
    fmt::print("{}", summary_json(plan, summary, options.out));
    return 0;
  }
  Table table({"#", "cell", "would", "command or reason"});
  for (const sweep::Row& row : summary.rows) {
    const bool done = row.state == sweep::RowState::kDone;
    const std::string would = !row.wanted && !done ? "not run" : !done ? "run" : row.kept ? "keep" : "skip";
    table.add({std::to_string(row.cell->number), row.cell->name, would,
               done && !row.kept ? row.result.sentence : sweep::shell_words(row.cell->server.command)});
  }
  fmt::print("{}", table.text({0}));
  return 0;
}

}  // namespace

int command_sweep(int argc, char** argv) {
  SweepArguments a;
  CLI::App app(
      "A matrix of servers, one after the other, unattended: starts each, waits until it is ready, asks a canary,\n"
      "measures, stops it, makes sure that nothing of it is left, and names the cause when one fails. Ends only what\n"
      "it started. Taken up again after a kill: cells that are done stay done. Exit code 0 when some cell works,\n"
      "1 when none does, 2 for usage, 130 after Ctrl-C.",
      "mettle sweep");
  app.footer(
      "Examples:\n  mettle sweep examples/night.toml\n  mettle sweep plan.toml --out /data/night --stop-on-winner\n"
      "  mettle sweep plan.toml --only 3 --json\n  mettle sweep plan.toml --dry-run");
  app.add_option("PLAN", a.plan, "plan file (TOML); docs/bringup.md lists its keys")->required()->check(not_empty());
  app.add_option("--out", a.out, "folder of results; sweep-NAME when left out")->check(not_empty());
  app.add_option("--only", a.only, "name or number of a cell; may be given again")
      ->check(not_empty())
      ->allow_extra_args(false);
  app.add_flag("--stop-on-winner", a.stop_on_winner, "end with the first cell that works");
  app.add_flag("--json", a.json, "JSON on standard output");
  app.add_flag("--dry-run", a.dry_run, "show the cells, start nothing");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  const sweep::Plan plan = sweep::read_plan(a.plan);
  sweep::Options options;
  std::error_code ec;
  options.out = fs::absolute(a.out.empty() ? "sweep-" + plan.name : a.out).lexically_normal().string();
  options.program = fs::read_symlink("/proc/self/exe", ec).string();
  options.only = a.only;
  options.stop_on_winner = a.stop_on_winner;
  options.stop = &g_stop;
  options.hurry = &g_hurry;
  View view(plan);
  options.on_change = [&](const std::vector<sweep::Row>& rows) { view.show(rows); };
  options.on_note = [&](const std::string& text) { view.note(text); };
  if (a.dry_run) return print_dry_run(plan, options, a.json);
  install_signals();
  const sweep::Summary summary = run_sweep(plan, options);
  view.end(summary.rows);
  if (a.json) {
    fmt::print("{}", summary_json(plan, summary, options.out));
  } else {
    fmt::print("{}", table_text(plan, summary.rows, summary.winner, 90));
    if (summary.winner >= 0) {
      const sweep::Row& row = summary.rows[static_cast<size_t>(summary.winner)];
      fmt::print("\nwinner  {}  {}\nrecipe  {}/recipe\n", row.cell->name, sweep::goal_text(plan, row.result),
                 options.out);
    } else {
      fmt::print("\nno cell works\n");
    }
    fmt::print("report  {}/report.html, report.md\n", options.out);
  }
  if (summary.stopped) {
    say("stopped; the same command goes on from here\n");
    return 128 + g_signal;
  }
  return summary.winner >= 0 ? 0 : 1;
}

}  // namespace mettle

// mettle doctor: the machine, what is wrong with it and what to do.
#include "doctor/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/hub_cache.h"
#include "base/terminal.h"
#include "cli/model_flags.h"
#include "prove/prover.h"

namespace mettle {
namespace {

bool ask_on_terminal(const std::string& question) {
  say(question + " [y/N] ");
  std::string answer;
  for (int c; (c = std::getchar()) != EOF && c != '\n';) answer += static_cast<char>(c);
  return answer == "y" || answer == "yes";
}

}  // namespace

int command_doctor(int argc, char** argv) {
  bool json = false, clean = false;
  CLI::App app(
      "The machine as a server needs it: GPUs, driver, toolkit, PCIe and peers, CPU, memory, limits, ports, cache, "
      "and\n"
      "what dead programs left. Each finding says why it matters and what to do. Exit code 1 when there is an error.\n"
      "Needs neither a GPU nor root.",
      "mettle doctor");
  app.footer(
      "Examples:\n  mettle doctor\n  mettle doctor --json | jq '.findings[] | select(.severity == \"error\")'\n"
      "  mettle doctor --clean");
  app.add_flag("--json", json, "JSON on standard output");
  app.add_flag("--clean", clean,
               "end mettle's own leftover processes and files; on a terminal, ask for each other process of this user "
               "on a GPU");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  const doctor::Doctor doctor({.hub_cache = hub_cache().string(), .cache_folder = default_cache_folder()});
  doctor::Report report = doctor.examine();
  if (clean) {
    const bool can_ask = is_terminal(STDIN_FILENO) && is_terminal(STDERR_FILENO);
    for (const std::string& line : doctor.clean(report, can_ask ? ask_on_terminal : doctor::Doctor::Ask()))
      say(line + "\n");
    report = doctor.examine();
  }
  fmt::print("{}", json ? doctor::report_json(report) : doctor::report_text(report, wants_colour(1)));
  return report.worst() == doctor::Severity::kError ? 1 : 0;
}

}  // namespace mettle

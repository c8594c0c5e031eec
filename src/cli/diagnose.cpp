// mettle diagnose: the root cause of a server's death, from its log.
#include "diagnose/diagnose.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/model_flags.h"
#include "diagnose/labelled_logs.h"

namespace mettle {
namespace {

struct DiagnoseArguments {
  std::vector<std::string> logs;
  diagnose::Options options;
  int exit_code = 0, silent_s = 0;
  bool json = false, list = false, self_test = false;
};

int self_test(const std::vector<std::string>& folders) {
  bool passed = true;
  const auto print = [&](const std::string& name, const diagnose::SelfTest& t) {
    for (const std::string& line : t.wrong) fmt::print("wrong  {}\n", line);
    fmt::print("{}: {} of {} right ({:.1f} %), {} of {} healthy logs called broken\n", name, t.right, t.cases,
               t.cases == 0 ? 0.0 : 100.0 * static_cast<double>(t.right) / static_cast<double>(t.cases),
               t.healthy_called_broken, t.healthy_cases);
    passed = passed && t.passed();
  };
  print("signatures", diagnose::test_signatures());
  for (const std::string& folder : folders) print(folder, diagnose::test_folder(folder));
  return passed ? 0 : 1;
}

}  // namespace

int command_diagnose(int argc, char** argv) {
  DiagnoseArguments a;
  CLI::App app(
      "Why a server died: reads logs of SGLang, vLLM, TensorRT-LLM, llama-server or mettle and names the root cause,\n"
      "the lines that show it, what misleads, and flags to try. Exit code 0 when nothing is wrong, 1 when something\n"
      "is (also when the cause stays unknown), 2 for usage.",
      "mettle diagnose");
  app.footer(
      "Examples:\n  mettle diagnose server.log\n  journalctl -u sglang | mettle diagnose - --device sm120\n"
      "  mettle diagnose logs/ --exit-code 137 --dmesg dmesg.txt --json\n  mettle diagnose --self-test "
      "tests/data/logs");
  app.add_option("LOG", a.logs, "log files (plain or gzip), folders, - for standard input")->check(not_empty());
  app.add_flag("--json", a.json, "one JSON object on standard output");
  CLI::Option* exit_code =
      app.add_option("--exit-code", a.exit_code, "exit code of the server; 128 + n or -n for signal n")
          ->check(CLI::Range(-64, 255));
  app.add_option("--dmesg", a.options.dmesg, "kernel log of that time (dmesg > FILE)")
      ->check(not_empty())
      ->allow_extra_args(false);
  app.add_option("--device", a.options.device, "the GPU, for instance sm120; default: what the log says")
      ->check(not_empty());
  CLI::Option* silent =
      app.add_option("--silent", a.silent_s, "it still runs and has written nothing for so many seconds")
          ->check(CLI::Range(1, 1 << 30));
  app.add_flag("--list", a.list, "print the table of signatures");
  app.add_flag("--self-test", a.self_test, "run all tests of the table; LOG: folders of labelled logs to test as well");
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  if (a.list) {
    fmt::print("{}", diagnose::signature_list(a.json));
    return 0;
  }
  if (a.self_test) return self_test(a.logs);
  if (a.logs.empty())
    fail(Code::kInvalidRequest, "LOG: must name a log file, a folder or - for standard input, got nothing");
  if (exit_code->count() > 0) a.options.exit_code = a.exit_code;
  if (silent->count() > 0) a.options.silent_s = a.silent_s;
  diagnose::Diagnoser diagnoser(a.options);
  for (const std::string& log : a.logs) diagnoser.read_path(log);
  const diagnose::Diagnosis d = diagnoser.finish();
  fmt::print("{}", a.json ? diagnose::to_json(d) : diagnose::to_text(d, wants_colour(1)));
  return d.healthy() ? 0 : 1;
}

}  // namespace mettle

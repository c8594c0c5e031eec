// mettle bench: one subcommand for each thing that is measured.
#include "cli/bench.h"

#include <fmt/format.h>

#include <string>

#include "base/terminal.h"
#include "cli/command.h"

namespace mettle {
namespace {

constexpr Command kBenches[] = {
    {"serve", "load on a server of the OpenAI API: latencies, throughput, one stream and many", bench_serve},
    {"offline", "prompt processing and token generation of the engine in this process", bench_offline},
    {"kernels", "every proved tactic against what memory and arithmetic allow", bench_kernels},
};

std::string usage() {
  std::string text = "Measures.\n\nusage: mettle bench WHAT [options]\n\n";
  for (const Command& c : kBenches) text += fmt::format("  {:<10} {}\n", c.name, c.summary);
  return text + "\nmettle bench WHAT --help shows its options and examples.\n";
}

}  // namespace

int command_bench(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    fmt::print("{}", usage());
    return 0;
  }
  for (const Command& c : kBenches)
    if (name == c.name) return c.run(argc - 1, argv + 1);
  say(name.empty() ? usage() : fmt::format("mettle bench: no such thing to measure, \"{}\"\n\n{}", name, usage()));
  return 2;
}

}  // namespace mettle

#include <fcntl.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/environment.h"

namespace mettle {

#define COMMAND(name, summary) int command_##name(int argc, char** argv);
#include "cli/commands.def"
#undef COMMAND

namespace {

constexpr Command kCommands[] = {
#define COMMAND(name, summary) {#name, summary, command_##name},
#include "cli/commands.def"
#undef COMMAND
};

std::string usage() {
  std::string text =
      "mettle serves NVFP4 mixture-of-experts language models and proves every kernel before it answers.\n\n"
      "usage: mettle COMMAND [options]\n\n";
  for (const Command& c : kCommands) text += fmt::format("  {:<10} {}\n", c.name, c.summary);
  return text + "\nmettle COMMAND --help shows a command's options and examples; mettle --version the version.\n";
}

// A descriptor that came closed would be given to the next file or socket, and text meant for people end up there.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
}

int run_command(const std::string& name, int argc, char** argv) {
  for (const Command& c : kCommands)
    if (name == c.name) return c.run(argc, argv);
  say(fmt::format("mettle: no command \"{}\"\n\n{}", name, usage()));
  return 2;
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name.empty()) {
    say(usage());
    return 2;
  }
  const int most = name == "help" ? 3 : 2;  // words that a question about the program itself has
  const bool about = name == "--help" || name == "-h" || name == "help" || name == "--version";
  if (about && argc > most) {
    say(fmt::format("mettle {}: one argument too many: \"{}\"\n", name, argv[most]));
    return 2;
  }
  if (name == "help" && argc > 2) {
    char help[] = "--help";
    char* words[] = {argv[2], help, nullptr};
    return run_command(argv[2], 2, words);
  }
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", usage());
    return 0;
  }
  if (name == "--version") {
    fmt::print("mettle {}\n", METTLE_VERSION);
    return 0;
  }
  check_environment();
  return run_command(name, argc - 1, argv + 1);
}

}  // namespace
}  // namespace mettle

int main(int argc, char** argv) {
  try {
    mettle::open_standard_descriptors();
    const int code = mettle::run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      mettle::fail(mettle::Code::kDevice, "standard output: could not be written");
    return code;
  } catch (const mettle::Error& e) {
    const bool colour = mettle::wants_colour(2);
    mettle::say(fmt::format("{} {}\n", mettle::paint(mettle::Colour::kRed, "error:", colour), e.message));
    return e.code == mettle::Code::kInvalidRequest ? 2 : 1;
  } catch (const std::bad_alloc&) {
    std::fputs("error: out of memory\n", stderr);
    return 1;
  } catch (const std::exception& e) {
    // What the formatting library throws there does not say which file it was.
    mettle::say(fmt::format("error: {}{}\n", std::ferror(stdout) != 0 ? "standard output: " : "", e.what()));
    return 1;
  }
}

// Subcommands of mettle: one file each, one line each in commands.def. argv[0] is the subcommand's name.
// Exit codes: 0 ok, 1 failure, 2 usage. Results go to standard output, everything else to standard error.
#pragma once

namespace mettle {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);
};

}  // namespace mettle

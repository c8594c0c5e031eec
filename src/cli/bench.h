// Subcommands of `mettle bench`; argv[0] is the subcommand's name.
#pragma once

namespace mettle {

int bench_serve(int argc, char** argv);
int bench_offline(int argc, char** argv);
int bench_kernels(int argc, char** argv);

}  // namespace mettle

// CPU kernels: one-row expert product against the read bandwidth beside it, gemv against gemm by row bucket, and what
// the pieces add up to for the 1.4 B shape (hidden 1024, 24 layers, 32 experts top-4 of width 512, heads 16/4 x 128,
// vocabulary 32,000, everything nvfp4); the methods of attention and gdn against each other, decode and prompts;
// what a second layout could win.
//   kernels_bench [--threads N] [--only expert|buckets|attention|gdn|layouts|model|load|sample] [--rounds N] [--json
//   FILE]
#include "kernels_bench.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "tensor/device.h"

namespace mettle::bench {

void Report::line(const std::string& text) { std::printf("%s\n", text.c_str()), std::fflush(stdout); }
void Report::record(const std::string& object) { json += (json.empty() ? "  " : ",\n  ") + object; }

namespace {

constexpr std::pair<const char*, void (*)(const Options&, Report&)> kSections[] = {
    {"expert", expert},   {"buckets", buckets}, {"attention", attention_methods}, {"gdn", gdn_methods},
    {"layouts", layouts}, {"model", model},     {"load", load_and_sample},        {"sample", sample_methods}};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 >= argc) fail(Code::kInvalidRequest, fmt::format("{}: needs a value", name));
    const std::string value = argv[++i];
    if (name == "--threads")
      o.threads = std::stoi(value);
    else if (name == "--rounds")
      o.rounds = std::stoi(value);
    else if (name == "--only")
      o.only = value;
    else if (name == "--json")
      o.json = value;
    else
      fail(Code::kInvalidRequest, fmt::format("unknown option {}", name));
  }
  return o;
}

}  // namespace
}  // namespace mettle::bench

int main(int argc, char** argv) {
  using namespace mettle::bench;
  try {
    const Options o = parse(argc, argv);
    Report out;
    out.line(mettle::this_cpu().model);
    for (const auto& [name, section] : kSections)
      if (o.only.empty() || o.only == name) section(o, out);
    if (!o.json.empty()) std::ofstream(o.json) << "[\n" << out.json << "\n]\n";
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

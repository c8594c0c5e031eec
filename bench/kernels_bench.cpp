// CPU kernels: one-row expert product against the read bandwidth beside it, gemv against gemm by row bucket, and what
// the pieces add up to for the 1.4 B shape (hidden 1024, 24 layers, 32 experts top-4 of width 512, heads 16/4 x 128,
// vocabulary 32,000, everything nvfp4); the methods of attention and gdn against each other, decode and prompts;
// what a second layout could win.
//   kernels_bench [--threads N] [--only expert|buckets|attention|gdn|layouts|model|load|sample] [--rounds N] [--json
//   FILE]
#include "kernels_bench.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tensor/device.h"

namespace mettle::bench {

void Report::line(const std::string& text) { std::printf("%s\n", text.c_str()), std::fflush(stdout); }
void Report::record(const std::string& object) { json += (json.empty() ? "  " : ",\n  ") + object; }

namespace {

constexpr std::pair<const char*, void (*)(const Options&, Report&)> kSections[] = {
    {"expert", expert},   {"buckets", buckets}, {"attention", attention_methods}, {"gdn", gdn_methods},
    {"layouts", layouts}, {"model", model},     {"load", load_and_sample},        {"sample", sample_methods}};

}  // namespace
}  // namespace mettle::bench

int main(int argc, char** argv) {
  using namespace mettle::bench;
  try {
    std::vector<std::string> names;
    for (const auto& [name, section] : kSections) names.emplace_back(name);
    const Options o = parse_options({argv + 1, argv + argc}, names);
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

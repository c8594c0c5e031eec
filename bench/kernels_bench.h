// The sections of kernels_bench, a file each or a few that time the same things.
#pragma once
#include <string>
#include <vector>

#include "base/thread_team.h"

namespace mettle::bench {

struct Options {
  int threads = usable_cores(), rounds = 15;
  std::string only, json;
};

// kernels_options.cpp. Fails with kInvalidRequest; `only` is empty or one of the sections.
Options parse_options(const std::vector<std::string>& arguments, const std::vector<std::string>& sections);

// Lines for whoever watches, objects for the file.
struct Report {
  std::string json;
  void line(const std::string& text);
  void record(const std::string& object);
};

// kernels_products.cpp
void expert(const Options& o, Report& out);
void buckets(const Options& o, Report& out);
void layouts(const Options& o, Report& out);
// kernels_methods.cpp
void attention_methods(const Options& o, Report& out);
void gdn_methods(const Options& o, Report& out);
// kernels_model.cpp
void model(const Options& o, Report& out);
// kernels_load.cpp
void load_and_sample(const Options& o, Report& out);
// kernels_sample.cpp
void sample_methods(const Options& o, Report& out);

}  // namespace mettle::bench

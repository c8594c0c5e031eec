// What `mettle tune` and `mettle bench kernels` share: flags, proofs and ceilings before the measuring, figures after.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/model_flags.h"
#include "prove/ceiling.h"
#include "prove/tune.h"

namespace mettle {

struct TuneArguments {
  std::string model, op, device = "auto", load_format = "auto";
  FormatFlags formats;
  int threads = 0;
  double budget = 120;
  bool json = false;
};
void add_tune_flags(CLI::App& app, TuneArguments& arguments);

// A model's problems, proved, and what the machine can do.
struct TuneGround {
  std::string model;
  std::vector<AnyProblem> problems;
  Device device;
  int threads = 1;
  ProofReport report;  // with the proofs' own times
  Ceiling ceiling;
};
Device tune_device(const TuneArguments& arguments);
int tune_threads(const TuneArguments& arguments);
TuneGround tune_ground(const TuneArguments& arguments, const Device& device);

struct TuneFigures {
  TuneResult result;
  double seconds = 0;
  std::string clock, power;
};
TuneFigures measure(const TuneGround& ground, TuneOptions options, const std::vector<TunedUnit>* imported);

// every_tactic: a line for each tactic, else one for each bucket with what was chosen.
std::string figures_text(const TuneGround& ground, const TuneFigures& figures, bool every_tactic);
std::string figures_json(const TuneGround& ground, const TuneFigures& figures);
// Dropped tactics and problems without a proof, on standard error. False when there are any.
bool tell_failures(const TuneResult& result);

}  // namespace mettle

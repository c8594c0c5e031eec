// Cells that are not even tried: what the device cannot run, and what a result of this sweep rules out.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "sweep/plan.h"
#include "sweep/result.h"

namespace mettle::sweep {

struct RefusedWord {
  std::string flag, word, why;  // "--moe-runner-backend", "flashinfer_trtllm", a sentence
};

// The words that `mettle explain --json --device` refuses because the device lacks the hardware for them; words that
// are merely not in mettle stay, other servers may have them. Nothing when the text is not that JSON.
std::vector<RefusedWord> refused_words(const std::string& explain_json);

// Asks this very program. Fails with kDevice, with what it said, when it does not answer.
std::vector<RefusedWord> ask_explain(const std::string& program, const std::string& device, const std::string& model);

// A sentence when the cell must not be tried. `done`: results so far, with their cells.
struct Done {
  const Cell* cell;
  const CellResult* result;
};
struct Skip {
  std::string cause, sentence;
};
std::optional<Skip> find_skip(const Plan& plan, const Cell& cell, const std::vector<RefusedWord>& refused,
                              const std::vector<Done>& done);

}  // namespace mettle::sweep

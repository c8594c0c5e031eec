// What mettle explain found, and how it is written.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "ops/foreign_names.h"
#include "prove/prover.h"

namespace mettle {

struct ForeignWord {  // of another engine
  const ForeignName* name = nullptr;
  std::string_view flag;
  std::string backend;  // ours, when it is not refused
  Verdict verdict;
};

struct Explanation {
  std::string model, architecture, formats;
  Device device;
  bool named = false;  // taken from the table, not found here
  std::vector<ProofEntry> entries;
  std::vector<ForeignWord> words;
};

std::string explanation_text(const Explanation& explanation);
std::string explanation_json(const Explanation& explanation);

}  // namespace mettle

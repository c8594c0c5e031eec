// The last check before the server says ready: known questions through the loaded model, whole path included.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/text_model.h"

namespace mettle {

struct CanaryQuestion {
  std::string prompt;  // raw text; or messages_json
  std::string messages_json;
  std::string expect;
};

struct CanaryOptions {
  bool embedded = false;  // the model is the one that comes with mettle: its answers are known to the letter
  std::string file;       // JSON lines {"messages": [...]} or {"prompt": "..."}, each with "expect"; "" = none
};

// Fails with kBadModel for a file that does not parse (line number).
std::vector<CanaryQuestion> read_canary_file(const std::string& path);
// Exact answers of the embedded model, from the skills its card allows as canaries.
std::vector<CanaryQuestion> embedded_canaries();

// Fails with kDevice, naming question, answer and what was expected. Returns one line for the log.
std::string run_canary(Engine& engine, const TextModel& model, const CanaryOptions& options);

}  // namespace mettle

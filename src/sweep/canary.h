// The questions that a server must answer right before it is measured.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "sweep/detectors.h"
#include "sweep/plan.h"

namespace mettle::sweep {

struct Answer {
  std::string prompt, text;
  std::optional<Finding> finding;
};

struct CanaryResult {
  std::vector<Answer> answers;
  std::string model;               // the name that requests carried
  std::optional<Finding> finding;  // the first one, or what kept the server from answering (NO_ANSWER)
  std::string reply;               // of the request that failed, cut: it may say why
  std::vector<std::string> notes;
  bool stopped = false;
};

// Asks a server at base_url ("http://127.0.0.1:8000") every prompt of the plan, one after the other, greedily.
// `references`: an answer for each prompt, "" where none counts.
CanaryResult ask_canary(const std::string& base_url, const ServerPlan& server, const CanaryPlan& plan,
                        const std::vector<std::string>& references, const std::atomic<bool>* stop);

// What the reference server answers; an answer for each prompt. Fails with kDevice when it does not answer.
std::vector<std::string> reference_answers(const CanaryPlan& plan, const ServerPlan& server,
                                           const std::atomic<bool>* stop);

}  // namespace mettle::sweep

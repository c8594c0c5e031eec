// One request to the server and its answer, piece by piece.
#pragma once
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "load/load.h"

namespace mettle {

struct Turn {
  std::string user, answer;  // answer empty in the last one
};

// Where requests go and what they share.
struct LoadTarget {
  std::string root;   // http://host:port
  std::string model;  // never empty
  const LoadOptions* options = nullptr;
};

// Fills everything but start_s. `answer` gets what belongs into the next turn: the text without its reasoning.
LoadRequest exchange(HttpClient& client, const LoadTarget& target, const std::vector<Turn>& turns, int output_tokens,
                     std::string& answer);

// http://host:port of what a person typed, without /v1; kInvalidRequest when it cannot be an address.
std::string root_of(const std::string& base_url);
HttpHeaders headers_of(const LoadOptions& options);
// The first model of /v1/models, where none is named. Fails with kDevice when nobody answers, or none is named.
std::string find_served_model(HttpClient& client, const LoadOptions& options, const std::string& root);

}  // namespace mettle

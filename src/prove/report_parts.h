// What the parts of the page of proofs share.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "prove/prover.h"

namespace mettle {

enum class ProofState { kProved, kRefused, kFailed };
ProofState state_of(const ProofEntry& entry);
std::string_view class_of(ProofState state);

std::string sigmas_text(double sigmas);

// The errors of one op's tactics between nothing and the line, and how far beyond it: SVG, a lane per backend.
std::string distance_plot(const std::vector<const ProofEntry*>& entries);

}  // namespace mettle

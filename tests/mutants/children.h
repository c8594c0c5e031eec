// What runs in processes of its own beside the proofs: the naive check, and healthy backends with other seeds.
#pragma once
#include <cstdint>
#include <string>

namespace mettle::mutants {

// For every fault of the op on that geometry prints a line "NAME 1" when the naive check passes it, else "NAME 0". The
// naive check is what a test beside a kernel often is: three row counts of normal data, the largest difference to a
// healthy backend at most 5 % of its largest value.
int naive_child(const std::string& op, const std::string& geometry);

// Proves one tactic of every healthy backend and every faultless copy at these seeds; one JSON line for each.
int healthy_child(const std::string& geometry, uint64_t seed);

}  // namespace mettle::mutants

// The needles of a table, and what each stands for.
#pragma once
#include <cstdint>
#include <vector>

#include "diagnose/needle_scanner.h"
#include "diagnose/signatures.h"

namespace mettle::diagnose {

struct NeedleIndex {
  struct Owner {
    enum class What { kSignature, kMarker, kMisleading, kFrame, kError } what;
    uint32_t index;
  };
  std::vector<std::vector<Owner>> owners;  // per needle
  NeedleScanner scanner;
};
NeedleIndex index_of(const Table& table);

}  // namespace mettle::diagnose

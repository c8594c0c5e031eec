// From what was collected to the answer: the earliest true cause on the first rank that failed.
#pragma once
#include "diagnose/events.h"

namespace mettle::diagnose {

Diagnosis classify(const Collected& collected, const Options& options, const Table& table);

}  // namespace mettle::diagnose

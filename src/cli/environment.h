// METTLE_* variables. An unknown one is an error that lists the valid ones: a misspelt switch must not be ignored.
#pragma once

namespace mettle {

void check_environment();  // fails with kInvalidRequest

}  // namespace mettle

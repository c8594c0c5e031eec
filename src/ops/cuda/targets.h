// Which GPU architectures this program was built for, as data: supports() asks it for any device.
#pragma once
#include <string_view>

namespace mettle {

// METTLE_CUDA_ARCHITECTURES of this build, separated by spaces: "90a", "80 90a 120f"; empty in a build without CUDA.
std::string_view cuda_targets();

// Whether code built for one of these targets can run on a device of that compute capability (90: 9.0):
//   90a   that one alone              120f      that family: the same major, no older
//   80    no older, by PTX            80-real   the same major, no older        90a-virtual  as without the suffix
// A word that names no number ("native") forbids nothing: loading tells.
bool targets_run_on(std::string_view targets, int sm);

}  // namespace mettle

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels_bench.h"

namespace mettle::bench {
namespace {

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    parse_options(arguments, {"expert", "gdn"});
  } catch (const Error& e) {
    return e.message;
  }
  return "";
}

TEST(KernelsOptions, ASectionThatIsNoneIsAnErrorWithTheKnownOnes) {
  EXPECT_EQ(parse_options({"--only", "gdn", "--rounds", "3"}, {"expert", "gdn"}).only, "gdn");
  EXPECT_EQ(parse_options({}, {"expert", "gdn"}).only, "");
  EXPECT_EQ(refusal({"--only", "gnd"}), "--only: must be one of expert, gdn, got \"gnd\"");
  EXPECT_EQ(refusal({"--only", ""}), "--only: must be one of expert, gdn, got \"\"");
  EXPECT_EQ(refusal({"--only"}), "--only: needs a value");
  EXPECT_EQ(refusal({"--once", "gdn"}), "unknown option --once");
}

}  // namespace
}  // namespace mettle::bench

#include "prove/timed_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "ops/moe_cases.h"
#include "prove/test_problems.h"

namespace mettle {
namespace {

// Host memory that says it is a GPU's.
class FakePlace : public Place {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  void* take(size_t bytes) override {
    memory_.emplace_back(bytes);
    return memory_.back().data();
  }
  void* take_shared(size_t bytes) override { return take(bytes); }
  void copy_in(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  std::vector<Buffer> memory_;
};

TEST(TimedWeights, ExpertsThatShareAMatrixLieApartAndHoldItsBytes) {
  const MoeCase c = moe_typical_case(tiny_moe(), 1, 7, Layout::kP64);
  MoeWeights w = c.weights->packed;
  w.experts[5].gate_up = w.experts[0].gate_up;
  const std::vector<float> scales(static_cast<size_t>(w.experts[0].gate_up.tiles * 16), 3.f);
  w.experts[5].gate_up.row_scale = scales.data();  // of its own, elsewhere
  FakePlace place;
  const MoeWeights copy = timed_copy(w, place);
  std::set<const uint8_t*> places;
  for (size_t e = 0; e < w.experts.size(); ++e)
    for (const auto& [to, from] : {std::pair{&copy.experts[e].gate_up, &w.experts[e].gate_up},
                                   std::pair{&copy.experts[e].down, &w.experts[e].down}}) {
      EXPECT_TRUE(places.insert(to->data).second) << e;
      EXPECT_NE(to->data, from->data);
      EXPECT_EQ(std::memcmp(to->data, from->data,
                            static_cast<size_t>(from->tiles * from->units) * static_cast<size_t>(from->unit_bytes)),
                0);
      EXPECT_EQ(to->row_scale, from->row_scale);
    }
  EXPECT_EQ(copy.pointers[5].gate_up, copy.experts[5].gate_up.data);
  EXPECT_EQ(copy.pointers[5].gate_up_scale, scales.data());
  EXPECT_NE(copy.router.data, w.router.data);
}

TEST(TimedWeights, OnACpuTheyAreTimedWhereTheyLie) {
  const MoeCase c = moe_typical_case(tiny_moe(), 1, 7, Layout::kTile16);
  TimedWeights<MoeWeights> timed(c.weights->packed, false);
  EXPECT_EQ(timed.next(), &c.weights->packed);
  EXPECT_EQ(timed.next(), &c.weights->packed);
}

}  // namespace
}  // namespace mettle

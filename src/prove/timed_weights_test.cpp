#include "prove/timed_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/temporary_folder.h"
#include "ops/moe_cases.h"
#include "prove/report.h"
#include "prove/test_problems.h"
#include "prove/tune_store.h"

namespace mettle {
namespace {

// Host memory that says it is a GPU's, so many bytes of it.
class FakePlace : public Place {
 public:
  explicit FakePlace(size_t room = SIZE_MAX, Code code = Code::kDevice) : room_(room), code_(code) { ++alive; }
  ~FakePlace() override { --alive; }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  void* take(size_t bytes) override {
    if (bytes > room_)
      fail(code_, "gpu memory: " + std::to_string(bytes) + " bytes wanted, " + std::to_string(room_) + " free");
    room_ -= bytes;
    memory_.emplace_back(bytes);
    return memory_.back().data();
  }
  void* take_shared(size_t bytes) override { return take(bytes); }
  void copy_in(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  static inline int alive = 0;

 private:
  size_t room_;
  Code code_;
  std::vector<Buffer> memory_;
};

// Launches of every number of rows are timed; how often it was told that copies found no room.
template <class Op>
int told(const typename Op::Problem& problem, size_t room) {
  ThreadTeam team(1);
  int times = 0;
  TrialContext context{.team = &team, .alive = [] {}, .proves = false};
  context.copies = [room] { return std::make_unique<FakePlace>(room); };
  context.on_no_room = [&times] { ++times; };
  Trial<Op> trial(problem, context);
  const Backend<Op>& reference = reference_of<Op>();
  const Tactic tactic = reference.tactics(problem, this_cpu()).front();
  for (const int rows : {1, 4, 1}) trial.typical_launch(reference, tactic, rows)();
  return times;
}

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
  TimedWeights<MoeWeights> timed(c.weights->packed, {});
  EXPECT_EQ(timed.next(), &c.weights->packed);
  EXPECT_EQ(timed.next(), &c.weights->packed);
  EXPECT_FALSE(timed.from_cache());
}

TEST(TimedWeights, WithoutRoomForCopiesTheyAreTimedWhereTheyLieAndSaySo) {
  const MoeCase c = moe_typical_case(tiny_moe(), 1, 7, Layout::kP64);
  const size_t bytes = timed_bytes(c.weights->packed);
  {
    TimedWeights<MoeWeights> timed(c.weights->packed, [] { return std::make_unique<FakePlace>(); });
    const MoeWeights* first = timed.next();
    EXPECT_NE(first, &c.weights->packed);
    EXPECT_NE(timed.next(), first);
    EXPECT_FALSE(timed.from_cache());
    EXPECT_EQ(FakePlace::alive, 1);
  }
  for (const size_t room : {size_t{0}, bytes / 2, bytes + bytes / 2}) {
    TimedWeights<MoeWeights> timed(c.weights->packed, [&] { return std::make_unique<FakePlace>(room); });
    EXPECT_EQ(timed.next(), &c.weights->packed) << room;
    EXPECT_TRUE(timed.from_cache()) << room;
    EXPECT_EQ(FakePlace::alive, 0) << "the room of copies that are not used is given back";
  }
  TimedWeights<MoeWeights> none(c.weights->packed, []() -> std::unique_ptr<Place> {
    fail(Code::kDevice,
         "cudaHostAlloc(&staging_, kStaging, cudaHostAllocDefault): cudaErrorMemoryAllocation: out of memory");
  });
  EXPECT_TRUE(none.from_cache());
  try {
    host_place()->take(SIZE_MAX / 2);
    ADD_FAILURE() << "so much memory";
  } catch (const Error& e) {
    EXPECT_TRUE(says_no_room(e)) << e.message;
  }
}

// A GPU that is lost: whatever is launched behind it fails too, and times of it are none.
TEST(TimedWeights, AnErrorThatIsNoWantOfMemoryIsNotTakenForOne) {
  const MoeCase c = moe_typical_case(tiny_moe(), 1, 7, Layout::kP64);
  for (const char* message :
       {"cudaStreamSynchronize(stream_): cudaErrorIllegalAddress: an illegal memory access was encountered",
        "error: cudaErrorECCUncorrectable: uncorrectable ECC error encountered", "gpu: no CUDA device is visible"}) {
    const auto lost = [message]() -> std::unique_ptr<Place> { fail(Code::kDevice, message); };
    EXPECT_THROW(TimedWeights<MoeWeights>(c.weights->packed, lost), Error) << message;
  }
  const auto broken = [] { return std::make_unique<FakePlace>(0, Code::kInternal); };
  EXPECT_THROW(TimedWeights<MoeWeights>(c.weights->packed, broken), Error);
}

TEST(TimedWeights, EveryOpWithWeightsTellsOnceThatThereIsNoRoom) {
  const LinearProblem linear{.in = 128, .out = 100, .format = WeightFormat::kNvfp4};
  EXPECT_EQ(told<LinearOp>(linear, 0), 1);
  EXPECT_EQ(told<MoeOp>(tiny_moe(), 0), 1);
  EXPECT_EQ(told<AttentionOp>(tiny_attention(), 0), 1);
  EXPECT_EQ(told<GdnOp>(tiny_gdn(), 0), 1);
  EXPECT_EQ(told<LinearOp>(linear, SIZE_MAX), 0);
}

// What a child tells reaches the report and the warning; the times serve this start and are not kept.
TEST(TimedWeights, TimesFromCachesAreToldAndNotKept) {
  const std::vector<AnyProblem> problems = {LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4}};
  const TemporaryFolder folder;
  const auto run = [&](const std::string& lines) {
    ProveOptions options;
    options.device = this_cpu();
    options.child_argv = {"/bin/sh", "-c",
                          "cat > /dev/null; echo '{\"hello\": true}'; " + lines + "echo '{\"end\": true}'"};
    options.cache_folder = folder.path();
    options.only_backend = "reference";
    return prove(problems, options);
  };
  const std::string proved =
      R"(echo '{"start": 0}'; echo '{"done": 0, "verdict": "OK", "have": "", "need": "", "sentence": "", "remedy": "", "max_error": 1, "bound": 10, "group_error": 0, "comparisons": 5, "cases": 1, "ms": 1}'; )";
  const auto timed = [](const std::string& last, const std::string& from_cache) {
    return R"(echo '{"timing": 0}'; echo '{"timed": 0, "us": [1, 2, 3, 4, 5, 6, )" + last + R"(], "from_cache": )" +
           from_cache + "}'; ";
  };
  const ProofReport first = run(proved + timed("7", "true"));
  ASSERT_EQ(first.entries.size(), 1u);
  EXPECT_TRUE(first.entries[0].verdict.ok()) << first.entries[0].verdict.sentence;
  EXPECT_EQ(first.entries[0].us[6], 7);
  EXPECT_TRUE(first.entries[0].timed_from_cache);
  EXPECT_THAT(report_json(first), testing::HasSubstr("\"timed_from_cache\": true"));
  testing::internal::CaptureStderr();
  warn_of_times(first);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning, testing::HasSubstr("linear: timed from the caches of "));
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  // The verdict is kept, the times are taken again; once they are good there is nothing to do.
  const ProofReport second = run(timed("8", "false"));
  EXPECT_TRUE(second.entries[0].cached);
  EXPECT_FALSE(second.entries[0].timed_from_cache);
  EXPECT_EQ(second.entries[0].us[6], 8);
  const ProofReport third = run("exit 1; ");
  EXPECT_EQ(third.entries[0].us[6], 8);
  testing::internal::CaptureStderr();
  warn_of_times(third);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");

  // So with tunings, which put an end to the proof's times where every bucket has one.
  TuneOptions options;
  options.device = this_cpu();
  options.cache_folder = folder.path();
  const auto tuned = [&](bool from_cache) {
    std::string lines = "cat > /dev/null; echo '{\"hello\": true}'; ";
    for (size_t b = 0; b < kRowBuckets.size(); ++b)
      lines += R"(echo '{"unit": 0, "bucket": )" + std::to_string(b) +
               R"(, "times": [[0, 9, 0.1, 3]], "from_cache": )" + (from_cache && b > 0 ? "true" : "false") + "}'; ";
    options.child_argv = {"/bin/sh", "-c", lines + "echo '{\"end\": true}'"};
    return tune(problems, first, options);
  };
  const auto kept = [&] { return TuningStore(folder.path(), tuning_identity(this_cpu(), 1)).load(); };
  const TuneResult flattering = tuned(true);
  EXPECT_EQ(flattering.units.size(), kRowBuckets.size());
  EXPECT_EQ(flattering.from_cache, std::vector<std::string>{"linear " + first.entries[0].problem});
  EXPECT_EQ(kept().size(), 1u);
  ProofReport applied = first;
  apply_units(kept(), applied);
  EXPECT_TRUE(applied.entries[0].timed_from_cache);
  EXPECT_TRUE(tuned(false).from_cache.empty());
  EXPECT_EQ(kept().size(), kRowBuckets.size());
  apply_units(kept(), applied);
  EXPECT_FALSE(applied.entries[0].timed_from_cache);
  EXPECT_EQ(applied.entries[0].us[6], 9);
}

}  // namespace
}  // namespace mettle

#include "load/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace mettle {
namespace {

using testing::ElementsAre;

std::vector<std::string> events_of(const std::vector<std::string_view>& pieces) {
  std::vector<std::string> out;
  SseParser parser;
  const auto take = [&](std::string_view data) { out.emplace_back(data); };
  for (const std::string_view piece : pieces) EXPECT_TRUE(parser.push(piece, take));
  parser.finish(take);
  return out;
}

const std::string kStream =
    ": keep-alive\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata:no space\r\n\r\ndata:  two spaces\rdata\r\rdatum: "
    "no\ndata: [DONE]\n\n\n: end\ndata: last";

TEST(Sse, EveryPlaceToSplitGivesTheSameEvents) {
  const std::vector<std::string> whole = {"{\"a\":1}", "no space", " two spaces\n", "[DONE]", "last"};
  EXPECT_EQ(events_of({kStream}), whole);
  for (size_t i = 0; i <= kStream.size(); ++i)
    for (size_t j = i; j <= kStream.size(); ++j) {
      const std::string_view text = kStream;
      ASSERT_EQ(events_of({text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole) << i << " " << j;
    }
}

TEST(Sse, LinesThatEndInTwoBytesAreOneEvent) {
  const std::string text = "data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n";
  for (size_t i = 0; i <= text.size(); ++i)
    EXPECT_THAT(events_of({std::string_view(text).substr(0, i), std::string_view(text).substr(i)}),
                ElementsAre("a\nb", "c"))
        << i;
}

TEST(Sse, NothingAndNothingButComments) {
  EXPECT_TRUE(events_of({}).empty());
  EXPECT_TRUE(events_of({"", "\n\n\n", ": a\n\n", "retry: 5\n\n"}).empty());
  EXPECT_THAT(events_of({"data:\n\n"}), ElementsAre(""));
}

TEST(Sse, ALineWithoutEndIsNotKept) {
  SseParser parser;
  const std::string piece(size_t{1} << 20, 'x');
  int taken = 0, given = 0;
  while (taken < 10 && parser.push(taken == 0 ? "data: " + piece : piece, [&](std::string_view) { ++given; })) ++taken;
  EXPECT_EQ(taken, 3);
  EXPECT_FALSE(parser.push("\n\n", [&](std::string_view) { ++given; }));
  EXPECT_EQ(given, 0);
}

TEST(Sse, AnEventOfLinesWithoutEndIsNotKept) {
  SseParser parser;
  const std::string line = "data: " + std::string(size_t{1} << 20, 'x') + "\n";
  int taken = 0;
  while (taken < 10 && parser.push(line, [](std::string_view) {})) ++taken;
  EXPECT_EQ(taken, 3);
}

}  // namespace
}  // namespace mettle

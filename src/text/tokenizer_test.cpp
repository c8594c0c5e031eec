#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace mettle {
namespace {

const std::string kModel = std::string(METTLE_SOURCE_DIR) + "/models/mettle-tiny/tokenizer.json";

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::from_file(kModel);
  return tokenizer;
}

struct Golden {
  std::string text, decoded, decoded_plain;
  std::vector<int32_t> ids;
};
std::vector<Golden> goldens() {
  std::vector<Golden> all;
  std::ifstream file(std::string(METTLE_SOURCE_DIR) + "/models/golden/tokenizer.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto j = nlohmann::json::parse(line);
    all.push_back({j.at("text"), j.at("decoded"), j.at("decoded_plain"), j.at("ids")});
  }
  return all;
}

TEST(Tokenizer, GoldenLines) {
  const auto all = goldens();
  ASSERT_EQ(all.size(), 600u);
  for (const Golden& g : all) {
    EXPECT_EQ(tiny().encode(g.text), g.ids) << g.text;
    EXPECT_EQ(tiny().decode(g.ids, /*skip_special=*/false), g.decoded) << g.text;
    EXPECT_EQ(tiny().decode(g.ids, /*skip_special=*/true), g.decoded_plain) << g.text;
  }
}

}  // namespace
}  // namespace mettle

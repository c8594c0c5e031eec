// Every component of a tokenizer.json against the reference library: data of tools/oracle/tokenizer_components.py.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

#include "text/tokenizer.h"

namespace mettle {
namespace {

TEST(TokenizerComponents, IdsAndTextAreThoseOfTheReference) {
  std::ifstream file(std::string(METTLE_SOURCE_DIR) + "/tests/data/tokenizer_components.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const auto base = nlohmann::json::parse(line);
  int configurations = 0, cases = 0;
  while (std::getline(file, line)) {
    const auto item = nlohmann::json::parse(line);
    auto json = base;
    json.merge_patch(item.at("patch"));
    SCOPED_TRACE(item.at("name").get<std::string>());
    const Tokenizer tokenizer = Tokenizer::from_json(json.dump(), "tokenizer.json");
    for (const auto& c : item.at("cases")) {
      const auto ids = c.at("ids").get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.encode(c.at("text").get<std::string>()), ids) << c.at("text");
      EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/false), c.at("decoded").get<std::string>()) << c.at("text");
      EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/true), c.at("plain").get<std::string>()) << c.at("text");
      ++cases;
    }
    const auto& junk = item.at("junk");
    EXPECT_EQ(tokenizer.decode(junk.at("ids").get<std::vector<int32_t>>(), false),
              junk.at("decoded").get<std::string>());
    ++configurations;
  }
  EXPECT_EQ(configurations, 87);
  EXPECT_EQ(cases, 87 * 24);
}

}  // namespace
}  // namespace mettle

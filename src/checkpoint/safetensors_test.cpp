#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/toy_checkpoint.h"

namespace mettle {
namespace {

ToyCheckpoint two_tensors() {
  ToyCheckpoint c;
  c.add_f32("a", {2, 3}, {1, 2, 3, 4, 5, 6}).add_bf16("b.weight", {4}, {1, -2, 0.5f, 8});
  return c;
}

// Opens a folder with this model.safetensors.
void open_bytes(const std::string& bytes) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", bytes);
  Safetensors::open(folder.path());
}

void expect_refused(const std::string& bytes, std::initializer_list<std::string> pieces) {
  expect_error(Code::kBadModel, pieces, [&] { open_bytes(bytes); });
}

TEST(Safetensors, ReadsOneFile) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", two_tensors().file());
  const Safetensors s = Safetensors::open(folder.path());
  ASSERT_EQ(s.tensors().size(), 2u);
  EXPECT_EQ(s.bytes(), 24u + 8u);
  const StoredTensor* b = s.find("b.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kBF16);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{4}));
  uint16_t bits[4];
  std::memcpy(bits, b->data, sizeof bits);
  EXPECT_EQ(bf16_to_float(bits[1]), -2.f);
  EXPECT_EQ(s.find("b"), nullptr);
  EXPECT_EQ(s.find(""), nullptr);
  s.check_intact();
}

TEST(Safetensors, ReadsEveryDtypeEmptyTensorsAndMetadata) {
  ToyCheckpoint c;
  c.header()["__metadata__"] = {{"format", "pt"}};
  const std::pair<const char*, int> types[] = {{"F64", 8}, {"F16", 2}, {"I64", 8},     {"I32", 4},
                                               {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"BOOL", 1},
                                               {"I16", 2}, {"U16", 2}, {"F8_E8M0", 1}, {"F8_E5M2", 1}};
  for (const auto& [type, bytes] : types)
    c.add(std::string("t.") + type, type, {3}, std::string(3 * static_cast<size_t>(bytes), '\0'));
  c.add("half bytes", "F4", {2, 3}, "abc").add("none", "F32", {0, 7}, "").add("scalar", "F32", {}, "abcd");
  const TemporaryFolder folder;
  folder.write("model.safetensors", c.file());
  const Safetensors s = Safetensors::open(folder.path());
  EXPECT_EQ(s.find("none")->bytes, 0u);
  EXPECT_EQ(s.find("scalar")->bytes, 4u);
  EXPECT_TRUE(s.find("scalar")->shape.empty());
  EXPECT_EQ(s.find("t.F8_E8M0")->stored_as, "F8_E8M0");
  EXPECT_FALSE(s.find("t.F8_E8M0")->readable);
  EXPECT_TRUE(s.find("t.F8_E4M3")->readable);
}

TEST(Safetensors, SurvivesBeingMovedWithShortNames) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", two_tensors().file());
  Safetensors first = Safetensors::open(folder.path());
  const Safetensors second = std::move(first);
  ASSERT_NE(second.find("a"), nullptr);
  EXPECT_EQ(second.find("a")->name, "a");
}

TEST(Safetensors, AFileWithoutTensorsIsEmpty) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", ToyCheckpoint::file("{}", ""));
  EXPECT_TRUE(Safetensors::open(folder.path()).tensors().empty());
}

TEST(Safetensors, RefusesMissingFiles) {
  const TemporaryFolder folder;
  expect_error(Code::kBadModel, {folder.path(), "no weight files"}, [&] { Safetensors::open(folder.path()); });
  folder.write("model.gguf", "GGUF");
  expect_error(Code::kBadModel, {"model.gguf", "model.safetensors.index.json"},
               [&] { Safetensors::open(folder.path()); });
  expect_error(Code::kBadModel, {"/nowhere"}, [] { Safetensors::open("/nowhere"); });
}

TEST(Safetensors, RefusesHeadersThatDoNotFit) {
  expect_refused("", {"at least 8 bytes", "this one 0"});
  expect_refused("1234567", {"this one 7"});
  expect_refused(std::string("\x10\0\0\0\0\0\0\0{}", 10), {"header of 16 bytes is longer than the file (10 bytes)"});
  expect_refused(std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10), {"at most 268435456", "18446744073709551615"});
  expect_refused(std::string("\0\0\0\x20\0\0\0\0{}", 10), {"at most 268435456", "536870912"});
  expect_refused(std::string(8, '\0'), {"not valid JSON"});
}

TEST(Safetensors, RefusesHeadersThatAreNoHeader) {
  const auto header = [](const std::string& text) { return ToyCheckpoint::file(text, ""); };
  expect_refused(header("{\"a\""), {"not valid JSON"});
  expect_refused(header("[]"), {"must be a JSON object", "a list"});
  expect_refused(header("7"), {"must be a JSON object", "7"});
  expect_refused(header("{\"a\":3}"), {"a: must be an object, got 3"});
  expect_refused(header("{\"a\":[]}"), {"a: must be an object, got a list"});
  expect_refused(header("{\"__metadata__\":{\"k\":1}}"), {"__metadata__", "must be a string, got 1"});
  expect_refused(header("{\"\":{}}"), {"tensor name"});
  expect_refused(header("{\"a\":{}}"), {"a: dtype: is missing"});
  expect_refused(header("{\"a\":{\"dtype\":\"F32\",\"shape\":[0]}}"), {"a: data_offsets: is missing"});
  expect_refused(header("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0]}}"), {"a: shape: is missing"});
  expect_refused(header("{\"a\":{\"dtype\":\"F99\"}}"), {"dtype", "F99", "BF16"});
  expect_refused(header("{\"a\":{\"dtype\":3}}"), {"a: dtype", "3"});
  expect_refused(header("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}"), {"dtype: is given twice"});
  expect_refused(header("{\"a\":{\"strides\":[1]}}"), {"strides", "is not a field"});
  expect_refused(header("{\"a\":{\"shape\":[-1]}}"), {"shape", "-1"});
  expect_refused(header("{\"a\":{\"shape\":[1.5]}}"), {"shape", "1.5"});
  expect_refused(header("{\"a\":{\"shape\":[[1]]}}"), {"shape", "a list"});
  expect_refused(header("{\"a\":{\"shape\":[1,1,1,1,1,1,1,1,1]}}"), {"at most 8 sizes"});
  expect_refused(header("{\"a\":{\"shape\":[999999999999999999]}}"), {"at most 2^48"});
  expect_refused(header("{\"a\":{\"data_offsets\":[0]}}"), {"[begin, end], got 1"});
  expect_refused(header("{\"a\":{\"data_offsets\":[0,1,2]}}"), {"more than two"});
  expect_refused(header("{\"a\":{\"data_offsets\":[0,-4]}}"), {"data_offsets", "-4"});
  expect_refused(header(std::string(100'000, '[')), {"must be a JSON object"});
  expect_refused(header("{\"a\":" + std::string(100'000, '{')), {"not valid JSON"});
  expect_refused(header("{\"" + std::string(5000, 'x') + "\":{}}"), {"1 to 1024 bytes", "5000 bytes"});
  expect_refused(header("{\"a\xFF\":{}}"), {"not valid JSON"});
}

TEST(Safetensors, RefusesOffsetsThatLie) {
  const auto with = [](const std::string& name, std::vector<uint64_t> offsets) {
    ToyCheckpoint c = two_tensors();
    c.header()[name]["data_offsets"] = offsets;
    return c.file();
  };
  expect_refused(with("a", {0, 100}), {"a: data_offsets [0, 100]", "32 data bytes"});
  expect_refused(with("a", {24, 0}), {"a: data_offsets [24, 0]"});
  expect_refused(with("a", {18446744073709551612u, 20}), {"a: data_offsets"});
  expect_refused(with("b.weight", {20, 28}), {"b.weight: data_offsets [20, 28] overlap a, which ends at 24"});
  expect_refused(with("b.weight", {0, 8}), {"overlap"});
  expect_refused(with("a", {0, 20}), {"a: F32 [2, 3] needs 24 bytes", "give 20"});

  ToyCheckpoint gap = two_tensors();
  gap.data() += "pad!";
  expect_refused(gap.file(), {"36 data bytes", "end at 32"});
  gap.header()["b.weight"]["data_offsets"] = {28, 36};
  expect_refused(gap.file(), {"b.weight: data_offsets [28, 36] leave a gap after byte 24"});
}

TEST(Safetensors, RefusesShapesThatDoNotFitTheirBytes) {
  ToyCheckpoint c = two_tensors();
  c.header()["a"]["shape"] = {2, 4};
  expect_refused(c.file(), {"a: F32 [2, 4] needs 32 bytes", "give 24"});
  c.header()["a"]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
  expect_refused(c.file(), {"a: F32", "no whole number of bytes"});
  ToyCheckpoint empty;
  empty.add("e", "U8", {int64_t{1} << 48, int64_t{1} << 15, 0}, "");
  expect_refused(empty.file(), {"e: U8", "no whole number of bytes"});
  c = two_tensors();
  c.header()["a"]["dtype"] = "F64";
  expect_refused(c.file(), {"a: F64 [2, 3] needs 48 bytes"});
  ToyCheckpoint odd;
  odd.add("x", "F4", {3}, "ab");
  expect_refused(odd.file(), {"x: F4 [3]", "no whole number of bytes"});
}

TEST(Safetensors, RefusesATensorTwice) {
  expect_refused(ToyCheckpoint::file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                     "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                                     "xy"),
                 {"a: is there twice"});
}

class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("one.safetensors", ToyCheckpoint().add_f32("a", {1}, {1}).file());
    folder_.write("two.safetensors", ToyCheckpoint().add_f32("b", {1}, {2}).add_f32("c", {1}, {3}).file());
    index({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}});
  }
  void index(const nlohmann::json& map) {
    folder_.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  }
  void expect_refused(std::initializer_list<std::string> pieces) {
    expect_error(Code::kBadModel, pieces, [&] { Safetensors::open(folder_.path()); });
  }
  TemporaryFolder folder_;
};

TEST_F(Sharded, ReadsAllShards) {
  const Safetensors s = Safetensors::open(folder_.path());
  EXPECT_EQ(s.tensors().size(), 3u);
  float c = 0;
  std::memcpy(&c, s.find("c")->data, 4);
  EXPECT_EQ(c, 3.f);
}

TEST_F(Sharded, RefusesAMissingShard) {
  std::filesystem::remove(folder_.path() + "/two.safetensors");
  expect_refused({"two.safetensors", "missing"});
}

TEST_F(Sharded, RefusesACutShard) {
  std::filesystem::resize_file(folder_.path() + "/two.safetensors",
                               std::filesystem::file_size(folder_.path() + "/two.safetensors") - 1);
  expect_refused({"two.safetensors", "c: data_offsets [4, 8]", "7 data bytes"});
}

TEST_F(Sharded, RefusesAnIndexThatLies) {
  index({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"d", "two.safetensors"}});
  expect_refused({"d is in two.safetensors", "no shard holds it"});
  index({{"a", "two.safetensors"}, {"b", "one.safetensors"}});
  expect_refused({"a is in two.safetensors", "it is in", "one.safetensors"});
  index({{"a", "../one.safetensors"}});
  expect_refused({"weight_map.a", "../one.safetensors"});
  index({{"a", "below/one.safetensors"}});
  expect_refused({"weight_map.a", "below/one.safetensors"});
  index({{"a", 7}});
  expect_refused({"weight_map.a", "7"});
  index(nlohmann::json::object());
  expect_refused({"weight_map must be an object"});
  folder_.write("model.safetensors.index.json",
                "{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"two.safetensors\"}}");
  expect_refused({"weight_map.a: is there twice"});
  const auto refused = [&](const std::string& text, std::initializer_list<std::string> pieces) {
    folder_.write("model.safetensors.index.json", text);
    expect_refused(pieces);
  };
  refused(R"({"weight_map": {"a": "one.safetensors"}, "weight_map": {"a": "one.safetensors"}})",
          {"weight_map is there twice"});
  refused(R"({"weight_map": {"a": {"b": "one.safetensors"}}})", {"weight_map.a", "an object"});
  refused(R"({"weight_map": {"a": ["one.safetensors"]}})", {"weight_map.a", "a list"});
  refused(R"({"weight_map": ["one.safetensors"]})", {"weight_map must be an object", "a list"});
  refused(R"({"weight_map": "one.safetensors"})", {"weight_map must be an object", "a string"});
  refused(R"({"metadata": {"weight_map": {"a": "one.safetensors"}}})", {"weight_map must be an object", "is missing"});
  refused("[]", {"weight_map must be an object", "a list"});
  refused("3", {"weight_map must be an object", "3"});
  refused(std::string(100'000, '['), {"weight_map must be an object"});
  folder_.write("model.safetensors.index.json", "{\"weight_map\"");
  expect_refused({"not valid JSON"});
}

TEST_F(Sharded, RefusesATensorInTwoShards) {
  folder_.write("two.safetensors",
                ToyCheckpoint().add_f32("a", {1}, {2}).add_f32("b", {1}, {2}).add_f32("c", {1}, {3}).file());
  expect_refused({"two.safetensors: a: is in", "one.safetensors too"});
}

TEST(Safetensors, NoticesAFileThatShrinks) {
  for (const size_t kept : {size_t{0}, size_t{100}, size_t{5000}, size_t{39999}}) {
    const TemporaryFolder folder;
    const std::string path =
        folder.write("model.safetensors", ToyCheckpoint().add("x", "U8", {40'000}, std::string(40'000, 'x')).file());
    const Safetensors s = Safetensors::open(folder.path());
    s.check_intact();
    std::filesystem::resize_file(path, kept);
    unsigned sum = 0;
    for (size_t i = 0; i < s.find("x")->bytes; ++i) sum += s.find("x")->data[i];  // must not crash
    EXPECT_LT(sum, 40'000u * 'x');
    expect_error(Code::kBadModel, {"model.safetensors", "shrank"}, [&] { s.check_intact(); });
  }
}

TEST(Safetensors, AFileReplacedByAnotherOneStaysAsItWas) {
  const TemporaryFolder folder;
  const std::string path = folder.write("model.safetensors", two_tensors().file());
  const Safetensors s = Safetensors::open(folder.path());
  folder.write("new", "x");
  std::filesystem::rename(folder.path() + "/new", path);
  s.check_intact();
}

}  // namespace
}  // namespace mettle

#include "checkpoint/model_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "checkpoint/toy_checkpoint.h"

namespace mettle {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Sets a variable for one test, nullptr unsets it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

TEST(ModelFolder, ReadsTheEmbeddedModel) {
  const ModelFolder m = open_model_folder(METTLE_SOURCE_DIR "/models/mettle-tiny");
  EXPECT_EQ(m.name, "mettle-tiny");
  EXPECT_EQ(m.config.at("model_type"), "qwen3_5_moe");
  EXPECT_EQ(m.eos_ids, (std::vector<int32_t>{6135, 6137}));
  EXPECT_EQ(m.sampling.temperature, 0.6);
  EXPECT_EQ(m.sampling.top_p, 0.95);
  EXPECT_EQ(m.sampling.top_k, 20);
  EXPECT_FALSE(m.sampling.min_p.has_value());
  EXPECT_FALSE(m.chat_template.empty());
  EXPECT_EQ(fs::path(m.tokenizer_path).filename(), "tokenizer.json");
}

TEST(ModelFolder, EndOfSequenceIdsAreTheUnionOfAllSources) {
  const TemporaryFolder f;
  f.write("config.json", R"({"eos_token_id": 1, "text_config": {"eos_token_id": [2, 1]}})");
  f.write("generation_config.json", R"({"eos_token_id": [3, 2]})");
  f.write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}, "added_tokens_decoder":
      {"7": {"content": "<begin>"}, "9": {"content": "<end>"}}})");
  const ModelFolder m = open_model_folder(f.path());
  EXPECT_EQ(m.eos_ids, (std::vector<int32_t>{1, 2, 3, 9}));
  EXPECT_EQ(m.eos_token_text, "<end>");
  EXPECT_TRUE(m.chat_template.empty());
  EXPECT_TRUE(m.tokenizer_path.empty());
}

TEST(ModelFolder, SmallFilesAreOptionalAndChecked) {
  const TemporaryFolder f;
  f.write("config.json", "{}");
  EXPECT_TRUE(open_model_folder(f.path()).eos_ids.empty());
  const auto refused = [&](const std::string& file, const std::string& text,
                           std::initializer_list<std::string> pieces) {
    f.write(file, text);
    expect_error(Code::kBadModel, pieces, [&] { open_model_folder(f.path()); });
    fs::remove(f.path() + "/" + file);
    if (file == "config.json") f.write(file, "{}");
  };
  refused("generation_config.json", R"({"temperature": "hot"})",
          {"generation_config.temperature", "0..100", "\"hot\""});
  refused("generation_config.json", R"({"temperature": -1})", {"generation_config.temperature", "-1"});
  refused("generation_config.json", R"({"top_k": 1.5})", {"generation_config.top_k", "1.5"});
  refused("generation_config.json", R"({"eos_token_id": -3})", {"generation_config.eos_token_id", "-3"});
  refused("generation_config.json", R"({"eos_token_id": 4294967296})", {"4294967296"});
  refused("generation_config.json", R"({"eos_token_id": "x"})", {"an integer or a list", "\"x\""});
  refused("generation_config.json", "{", {"generation_config.json", "not valid JSON"});
  refused("generation_config.json", R"({"temperature": 1e999})", {"not valid JSON"});
  refused("generation_config.json", "{\"a\": \"" + std::string(2 << 20, 'x') + "\"}", {"at most 1048576 bytes"});
  refused("tokenizer_config.json", R"({"eos_token": "e", "added_tokens_decoder": {"-1": {"content": "e"}}})",
          {"\"-1\""});
  refused("tokenizer_config.json", R"({"chat_template": 5})", {"chat_template", "number"});
  refused("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})",
          {"without one named \"default\""});
  refused("chat_template.jinja", std::string((1 << 20) + 1, 'x'), {"at most 1048576"});
}

TEST(ModelFolder, ConfigIsRequiredAndLimited) {
  const TemporaryFolder f;
  expect_error(Code::kBadModel, {"config.json", "missing"}, [&] { open_model_folder(f.path()); });
  expect_error(Code::kBadModel, {"/nowhere/at/all"}, [] { open_model_folder("/nowhere/at/all"); });
  ASSERT_EQ(mkfifo((f.path() + "/config.json").c_str(), 0600), 0);  // nobody writes: opening it would wait for ever
  expect_error(Code::kBadModel, {"config.json", "no file"}, [&] { open_model_folder(f.path()); });
  fs::remove(f.path() + "/config.json");
  const auto refused = [&](const std::string& text, std::initializer_list<std::string> pieces) {
    f.write("config.json", text);
    expect_error(Code::kBadModel, pieces, [&] { open_model_folder(f.path()); });
  };
  refused("", {"not valid JSON"});
  refused("[1]", {"must be a JSON object, is array"});
  refused("{\"a\": 1, \"a\": 2}", {"key \"a\" is there twice"});
  refused("{\"a\": " + std::string(10'000, '[') + std::string(10'000, ']') + "}", {"nested at most 64 deep"});
  refused("{\"a\": \"" + std::string(17 << 20, 'x') + "\"}", {"at most 16777216 bytes"});
  refused("{\"text_config\": 3}", {"config.text_config: must be an object, got 3"});
  refused("{\"a\": \"\xFF\"}", {"not valid JSON"});
}

TEST(ModelFolder, IsNamedByItsPath) {
  const TemporaryFolder f;
  f.write("some/config.json", "{}");
  fs::create_symlink(f.path() + "/some", f.path() + "/link");
  EXPECT_EQ(open_model_folder(f.path() + "/some/").name, "some");
  EXPECT_EQ(open_model_folder(f.path() + "/some/../some/.").name, "some");
  EXPECT_EQ(open_model_folder(f.path() + "/link").name, "link");
}

TEST(ModelFolder, ChatTemplateSources) {
  const TemporaryFolder f;
  f.write("config.json", "{}");
  f.write("tokenizer_config.json",
          R"({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list"}]})");
  EXPECT_EQ(open_model_folder(f.path()).chat_template, "list");
  f.write("tokenizer_config.json", R"({"chat_template": "text"})");
  EXPECT_EQ(open_model_folder(f.path()).chat_template, "text");
  f.write("chat_template.json", R"({"chat_template": "wrapped"})");
  EXPECT_EQ(open_model_folder(f.path()).chat_template, "wrapped");
  f.write("chat_template.jinja", "file");
  EXPECT_EQ(open_model_folder(f.path()).chat_template, "file");
}

TEST(ModelFolder, HfQuantConfigStandsInForQuantizationConfig) {
  const TemporaryFolder f;
  f.write("config.json", "{}");
  f.write("hf_quant_config.json", R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
                                      "exclude_modules": ["lm_head"]}})");
  const json merged = open_model_folder(f.path()).config.at("quantization_config");
  EXPECT_EQ(merged.at("quant_method"), "modelopt");
  EXPECT_EQ(merged.at("quant_algo"), "NVFP4");
  EXPECT_EQ(merged.at("ignore"), json::array({"lm_head"}));
  f.write("config.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_EQ(open_model_folder(f.path()).config.at("quantization_config").at("quant_method"), "fp8");
  f.write("config.json", R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})");
  EXPECT_FALSE(open_model_folder(f.path()).config.contains("quantization_config"));
  f.write("config.json", "{}");
  f.write("hf_quant_config.json", R"({"quantisation": {}})");
  expect_error(Code::kBadModel, {"hf_quant_config.json.quantization", "is missing"},
               [&] { open_model_folder(f.path()); });
}

TEST(FindModel, FolderAndConfigPath) {
  const std::string tiny = METTLE_SOURCE_DIR "/models/mettle-tiny";
  EXPECT_EQ(find_model(tiny), tiny);
  EXPECT_EQ(find_model(tiny + "/config.json"), tiny);
  expect_error(Code::kBadModel, {"tokenizer.json", "is a file"}, [&] { find_model(tiny + "/tokenizer.json"); });
  expect_error(Code::kBadModel, {"must hold config.json"}, [] { find_model(METTLE_SOURCE_DIR "/src"); });
  for (const char* name : {"no such thing", "../no such folder", "a/b/c", "/etc/nothing", "a/..", "-a/b", "\xC3\xA9/b"})
    expect_error(Code::kBadModel, {name, "owner/name"}, [&] { find_model(name); });
}

TEST(FindModel, Embedded) {
  const TemporaryFolder f;
  f.write("config.json", "{}");
  const Variable own("METTLE_MODEL_DIR", f.path().c_str());
  EXPECT_EQ(find_model(""), f.path());
  const Variable wrong("METTLE_MODEL_DIR", "/nowhere");
  expect_error(Code::kBadModel, {"METTLE_MODEL_DIR=/nowhere"}, [] { find_model(""); });
}

TEST(FindModel, EmbeddedIsLookedForBesideTheProgram) {
  const Variable own("METTLE_MODEL_DIR", nullptr);
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  expect_error(Code::kBadModel,
               {(here / "mettle-tiny").string(), (here.parent_path() / "models/mettle-tiny").string(),
                (here.parent_path() / "share/mettle/models/mettle-tiny").string()},
               [] { find_model(""); });
}

class HubCache : public testing::Test {
 protected:
  void snapshot(const std::string& hub, const std::string& commit) {
    home_.write(hub + "/models--owner--name--x/snapshots/" + commit + "/config.json", "{}");
  }
  TemporaryFolder home_;
  Variable hub_{"HF_HUB_CACHE", nullptr}, old_hub_{"HUGGINGFACE_HUB_CACHE", nullptr}, hf_home_{"HF_HOME", nullptr},
      cache_{"XDG_CACHE_HOME", nullptr}, user_{"HOME", home_.path().c_str()};
};

TEST_F(HubCache, IsFoundInEachPlace) {
  for (const auto& [variable, value, hub] :
       {std::tuple{"HOME", "", ".cache/huggingface/hub"}, std::tuple{"XDG_CACHE_HOME", "/xdg", "xdg/huggingface/hub"},
        std::tuple{"HF_HOME", "/hf", "hf/hub"}, std::tuple{"HF_HUB_CACHE", "/own", "own"}}) {
    snapshot(hub, "abc123");
    home_.write(std::string(hub) + "/models--owner--name--x/refs/main", "abc123\n");
    const Variable set(variable, (home_.path() + value).c_str());
    const std::string found = find_model("owner/name--x");
    EXPECT_EQ(found, home_.path() + "/" + hub + "/models--owner--name--x/snapshots/abc123");
    EXPECT_EQ(open_model_folder(found).name, "owner/name--x");
  }
}

TEST_F(HubCache, RefMainChoosesTheSnapshot) {
  const std::string hub = ".cache/huggingface/hub";
  snapshot(hub, "aaa");
  EXPECT_NE(find_model("owner/name--x").find("snapshots/aaa"), std::string::npos);
  snapshot(hub, "bbb");
  expect_error(Code::kBadModel, {"owner/name--x", "not downloaded"}, [] { find_model("owner/name--x"); });
  home_.write(hub + "/models--owner--name--x/refs/main", "bbb");
  EXPECT_NE(find_model("owner/name--x").find("snapshots/bbb"), std::string::npos);
  home_.write(hub + "/models--owner--name--x/refs/main", "ccc");
  expect_error(Code::kBadModel, {"snapshots/ccc has no config.json"}, [] { find_model("owner/name--x"); });
  home_.write(hub + "/models--owner--name--x/refs/main", "../../..");
  expect_error(Code::kBadModel, {"refs/main", "commit"}, [] { find_model("owner/name--x"); });
}

TEST_F(HubCache, NothingDownloaded) {
  expect_error(Code::kBadModel, {"owner/other", "not downloaded", home_.path()}, [] { find_model("owner/other"); });
}

TEST(ConfigReader, NamesTheFieldInEveryError) {
  const json config =
      json::parse(R"({"text_config": {"hidden_size": "abc", "layers": 3, "whole": 8.0, "eps": 1e-6, "on": true,
      "name": "x", "names": ["a", "b"], "ids": [1, 2], "null": null, "big": 18446744073709551615, "mixed": [1, "a"]}})");
  const ConfigReader r = ConfigReader(config, "config").child("text_config");
  EXPECT_EQ(r.path(), "config.text_config");
  EXPECT_EQ(r.integer("layers", 1, 10), 3);
  EXPECT_EQ(r.integer("whole", 1, 10), 8);
  EXPECT_EQ(r.integer("absent", 1, 10, 7), 7);
  EXPECT_EQ(r.integer("null", 1, 10, 7), 7);
  EXPECT_FALSE(r.has("null"));
  EXPECT_EQ(r.number("eps", 0, 1), 1e-6);
  EXPECT_EQ(r.number("absent", 0, 1, 0.5), 0.5);
  EXPECT_TRUE(r.boolean("on", false));
  EXPECT_EQ(r.text("name", ""), "x");
  EXPECT_EQ(r.texts("names"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.integers("ids"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(r.integers("layers"), (std::vector<int64_t>{3}));
  EXPECT_TRUE(r.integers("absent").empty());
  const auto refused = [](std::initializer_list<std::string> pieces, auto fn) {
    expect_error(Code::kBadModel, pieces, fn);
  };
  refused({"config.text_config.hidden_size: must be an integer in 1..65536, got \"abc\""},
          [&] { r.integer("hidden_size", 1, 65536); });
  refused({"config.text_config.layers", "4..10", "3"}, [&] { r.integer("layers", 4, 10); });
  refused({"config.text_config.absent", "is missing"}, [&] { r.integer("absent", 4, 10); });
  refused({"big", "18446744073709551615"}, [&] { r.integer("big", 0, INT64_MAX); });
  refused({"eps", "an integer"}, [&] { r.integer("eps", 0, 10); });
  refused({"eps", "a number in 1..2", "1e-06"}, [&] { r.number("eps", 1, 2); });
  refused({"name", "a number"}, [&] { r.number("name", 1, 2); });
  refused({"layers", "true or false"}, [&] { r.boolean("layers", true); });
  refused({"layers", "a string"}, [&] { r.text("layers", ""); });
  refused({"mixed", "list of strings"}, [&] { r.texts("mixed"); });
  refused({"mixed", "list of integers"}, [&] { r.integers("mixed"); });
  refused({"config.text_config.layers", "an object"}, [&] { r.child("layers"); });
  refused({"config", "must be an object"}, [] { ConfigReader(json(3), "config"); });
}

}  // namespace
}  // namespace mettle

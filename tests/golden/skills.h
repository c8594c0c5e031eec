// 256 held-out chats with the reference's tokens.
#pragma once
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "golden_support.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace mettle::testing {

struct Skill {
  std::string name;
  Ids prompt, completion;  // completion ends with the stop token
};

inline std::vector<Skill> read_skills() {
  const ModelFolder folder = open_model_folder(tiny_options().model_path);
  const Tokenizer tokenizer = Tokenizer::from_file(folder.tokenizer_path);
  const ChatTemplate chat(folder.chat_template);
  std::vector<Skill> skills;
  std::ifstream file(kGolden + "/skills.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::ordered_json::parse(line);
    nlohmann::ordered_json variables = {
        {"messages", row["messages"]}, {"add_generation_prompt", true}, {"enable_thinking", row["enable_thinking"]}};
    if (!row["tools"].is_null()) variables["tools"] = row["tools"];
    Skill skill{row["skill"], tokenizer.encode(chat.render(variables)), row["completion_ids"].get<Ids>()};
    EXPECT_EQ(skill.prompt.size(), row["prompt_tokens"].get<size_t>()) << line;
    skills.push_back(std::move(skill));
  }
  EXPECT_EQ(skills.size(), 256u);
  return skills;
}

inline Ids with_stop(const Watched::Run& run) {
  Ids tokens = run.tokens;
  if (run.finish == Finish::kStop) tokens.push_back(run.stop_token);
  return tokens;
}

inline std::vector<Watched::Run> run_all(Watched& engine, const std::vector<Skill>& skills, size_t first,
                                         size_t count) {
  std::vector<Ids> prompts;
  std::vector<SamplingParams> params;
  for (size_t i = first; i < std::min(first + count, skills.size()); ++i) {
    prompts.push_back(skills[i].prompt);
    params.push_back(greedy(static_cast<int>(skills[i].completion.size()) + 8));
  }
  return engine.run(prompts, params);
}

}  // namespace mettle::testing

// One line of a chat from the terminal, with editing and a history that is kept between runs.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace mettle {

class PromptLine {
 public:
  explicit PromptLine(const std::string& prompt);
  ~PromptLine();  // writes the history; a folder that cannot be written is no error
  PromptLine(const PromptLine&) = delete;
  PromptLine& operator=(const PromptLine&) = delete;

  // The line without its end, empty after Ctrl-C; nothing at the end of input.
  std::optional<std::string> read();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mettle

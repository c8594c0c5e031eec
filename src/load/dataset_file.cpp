#include "load/dataset_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file_map.h"

namespace mettle {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostFile = size_t{2} << 30, kMostEntry = size_t{16} << 20;
constexpr int kMostDepth = 32, kMostOutput = 1 << 20;

// The entries of a file, each as its text: lines, or the elements of one array.
class Entries {
 public:
  Entries(std::string_view text, const std::string& path) : text_(text), path_(path) {
    skip_space();
    array_ = at_ < text_.size() && text_[at_] == '[';
    if (array_) ++at_;
  }

  std::optional<std::string_view> next() {
    ++number_;
    return array_ ? next_element() : next_line();
  }
  std::string where() const { return fmt::format("{}: {} {}", path_, array_ ? "entry" : "line", number_); }

 private:
  static bool space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
  void skip_space() {
    while (at_ < text_.size() && space(text_[at_])) ++at_;
  }

  std::optional<std::string_view> next_line() {
    for (; at_ < text_.size(); ++number_) {
      const size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line = text_.substr(at_, end - at_);
      at_ = end + 1;
      while (!line.empty() && space(line.back())) line.remove_suffix(1);
      if (line.empty()) continue;
      check_size(line.size());
      return line;
    }
    return std::nullopt;
  }

  std::optional<std::string_view> next_element() {
    skip_space();
    if (at_ >= text_.size()) fail(Code::kBadModel, fmt::format("{}: must end with ], ends before", where()));
    if (text_[at_] == ']') return std::nullopt;
    const size_t begin = at_;
    int depth = 0;
    bool in_string = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      check_size(at_ - begin);
      if (in_string) {
        if (c == '\\')
          ++at_;
        else if (c == '"')
          in_string = false;
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (depth > 0 && (c == '}' || c == ']')) {
        --depth;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        break;
      }
    }
    if (at_ >= text_.size()) fail(Code::kBadModel, fmt::format("{}: must be whole, the file ends in it", where()));
    const std::string_view element = text_.substr(begin, at_ - begin);
    if (text_[at_] == ',') ++at_;
    return element;
  }

  void check_size(size_t size) const {
    if (size > kMostEntry) fail(Code::kBadModel, fmt::format("{}: must have at most {} bytes", where(), kMostEntry));
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0, number_ = 0;
  bool array_ = false;
};

Json parsed(std::string_view text, const std::string& where) {
  const auto depth = [&](int level, Json::parse_event_t, Json&) {
    if (level > kMostDepth) fail(Code::kBadModel, fmt::format("{}: must be nested at most {} deep", where, kMostDepth));
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), depth);
  } catch (const Json::exception& e) {
    fail(Code::kBadModel, fmt::format("{}: must be JSON: {}", where, std::string(e.what()).substr(0, 200)));
  }
}

const std::string* text_field(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
}

int tokens_of(const std::string& text, const Tokenizer* tokenizer) {
  const size_t count = tokenizer != nullptr ? tokenizer->encode(text, AddedTokens::kAsText).size()
                                            : static_cast<size_t>(std::count(text.begin(), text.end(), ' ')) + 1;
  return static_cast<int>(std::clamp<size_t>(count, 1, kMostOutput));
}

// The first question, and how long the answer to it was. An entry without a question is none.
std::optional<LoadPrompt> prompt_of(const Json& entry, const DatasetOptions& options, const std::string& where) {
  LoadPrompt prompt;
  prompt.output_tokens = options.output_tokens;
  if (const std::string* text = text_field(entry, "prompt")) {
    prompt.text = *text;
    if (const auto found = entry.find("output_tokens"); found != entry.end() && !found->is_null()) {
      if (!found->is_number_integer() || found->get<int64_t>() < 1 || found->get<int64_t>() > kMostOutput)
        fail(Code::kBadModel, fmt::format("{}: output_tokens must be in 1..{}, got {}", where, kMostOutput,
                                          found->dump().substr(0, 100)));
      prompt.output_tokens = static_cast<int>(found->get<int64_t>());
    }
  } else {
    if (!entry.is_object())
      fail(Code::kBadModel, fmt::format("{}: must be an object, is {}", where, entry.type_name()));
    const bool share = entry.contains("conversations");
    const auto list = entry.find(share ? "conversations" : "messages");
    if (list == entry.end() || !list->is_array())
      fail(Code::kBadModel, fmt::format("{}: must have a prompt, conversations or messages", where));
    const std::string* question = nullptr;
    for (const Json& turn : *list) {
      const std::string* who = text_field(turn, share ? "from" : "role");
      const std::string* said = text_field(turn, share ? "value" : "content");
      if (who == nullptr || said == nullptr) continue;
      if (question == nullptr && (*who == "human" || *who == "user")) {
        question = said;
      } else if (question != nullptr && (*who == "gpt" || *who == "assistant")) {
        prompt.output_tokens = tokens_of(*said, options.tokenizer);
        break;
      }
    }
    if (question != nullptr) prompt.text = *question;
  }
  if (prompt.text.empty()) return std::nullopt;
  if (options.tokenizer != nullptr) prompt.input_tokens = tokens_of(prompt.text, options.tokenizer);
  return prompt;
}

}  // namespace

std::vector<LoadPrompt> read_dataset(const DatasetOptions& options) {
  const FileMap file(options.path);
  if (file.size() > kMostFile)
    fail(Code::kBadModel, fmt::format("{}: must have at most {} bytes, has {}", options.path, kMostFile, file.size()));
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  Entries entries(text, options.path);
  std::vector<LoadPrompt> prompts;
  const auto wanted = static_cast<size_t>(options.count);
  while (prompts.size() < wanted) {
    const auto entry = entries.next();
    if (!entry) break;
    if (auto prompt = prompt_of(parsed(*entry, entries.where()), options, entries.where()))
      prompts.push_back(std::move(*prompt));
  }
  file.check_intact();
  if (prompts.empty()) fail(Code::kBadModel, fmt::format("{}: must have a request, has none", options.path));
  for (size_t i = 0; prompts.size() < wanted; ++i) {
    LoadPrompt again = prompts[i];
    prompts.push_back(std::move(again));
  }
  return prompts;
}

}  // namespace mettle

#include "sweep/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <toml++/toml.h>

#include "base/error.h"
#include "diagnose/diagnose.h"
#include "diagnose/pattern.h"
#include "sweep/matrix.h"

namespace mettle::sweep {
namespace {

constexpr size_t kMostFile = size_t{1} << 20, kMostText = 8192, kMostWords = 256, kMostPrompts = 64, kMostPairs = 128;

// A table of the plan: hands out values by key and complains about what nobody asked for.
class Reader {
 public:
  Reader(const toml::table& table, std::string file, std::string where)
      : table_(table), file_(std::move(file)), where_(std::move(where)) {}

  [[noreturn]] void bad(std::string_view key, const std::string& message) const {
    const toml::node* node = table_.get(key);
    const toml::source_region at = node != nullptr ? node->source() : table_.source();
    fail(Code::kInvalidRequest,
         fmt::format("{}:{}: {}{}: {}", file_, at.begin.line, where_.empty() ? "" : where_ + ".", key, message));
  }

  const toml::node* find(std::string_view key) {
    known_.emplace_back(key);
    return table_.get(key);
  }
  bool has(std::string_view key) const { return table_.get(key) != nullptr; }

  std::string checked(std::string_view key, const std::string& text) const {
    if (text.size() > kMostText) bad(key, fmt::format("must have at most {} bytes, has {}", kMostText, text.size()));
    if (text.find('\0') != std::string::npos) bad(key, "must hold no zero byte, has one");
    return text;
  }
  void text(std::string_view key, std::string& out) {
    if (const toml::node* node = find(key)) {
      const auto value = node->value_exact<std::string>();
      if (!value) bad(key, fmt::format("must be a text, is {}", kind(*node)));
      out = checked(key, *value);
    }
  }
  void flag(std::string_view key, bool& out) {
    if (const toml::node* node = find(key)) {
      const auto value = node->value_exact<bool>();
      if (!value) bad(key, fmt::format("must be true or false, is {}", kind(*node)));
      out = *value;
    }
  }
  void number(std::string_view key, double& out, double least, double most) {
    if (const toml::node* node = find(key)) {
      const auto value = node->value<double>();
      if (!node->is_number() || !value || !(*value >= least && *value <= most))
        bad(key, fmt::format("must be a number from {} to {}, is {}", least, most, shown(*node)));
      out = *value;
    }
  }
  void count(std::string_view key, int& out, int least, int most) {
    if (const toml::node* node = find(key)) out = whole(key, *node, least, most);
  }
  int whole(std::string_view key, const toml::node& node, int least, int most) const {
    const auto value = node.value_exact<int64_t>();
    if (!value || *value < least || *value > most)
      bad(key, fmt::format("must be a whole number from {} to {}, is {}", least, most, shown(node)));
    return static_cast<int>(*value);
  }
  void texts(std::string_view key, std::vector<std::string>& out, size_t least, size_t most) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::array* list = node->as_array();
    if (list == nullptr) bad(key, fmt::format("must be a list of texts, is {}", kind(*node)));
    if (list->size() < least || list->size() > most)
      bad(key, fmt::format("must have {} to {} entries, has {}", least, most, list->size()));
    out.clear();
    for (const toml::node& entry : *list) {
      const auto value = entry.value_exact<std::string>();
      if (!value) bad(key, fmt::format("must be a list of texts, entry {} is {}", out.size() + 1, kind(entry)));
      out.push_back(checked(key, *value));
    }
  }
  void counts(std::string_view key, std::vector<int>& out, int least, int most, size_t most_entries) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::array* list = node->as_array();
    if (list == nullptr || list->size() > most_entries)
      bad(key, fmt::format("must be a list of at most {} whole numbers, is {}", most_entries, kind(*node)));
    out.clear();
    for (const toml::node& entry : *list) out.push_back(whole(key, entry, least, most));
  }
  // NAME = value; numbers and truth become the text that a program sees.
  void pairs(std::string_view key, Pairs& out) {
    const toml::node* node = find(key);
    if (node == nullptr) return;
    const toml::table* table = node->as_table();
    if (table == nullptr) bad(key, fmt::format("must be a table NAME = value, is {}", kind(*node)));
    if (table->size() > kMostPairs)
      bad(key, fmt::format("must have at most {} names, has {}", kMostPairs, table->size()));
    for (const auto& [name, value] : *table) {
      const std::string variable(name.str());
      if (!variable_name(variable)) bad(key, fmt::format("\"{}\" is no name of a variable", variable));
      std::erase_if(out, [&](const auto& pair) { return pair.first == variable; });
      out.emplace_back(variable, checked(key, plain(key, value)));
    }
  }
  std::string plain(std::string_view key, const toml::node& node) const {
    if (const auto text = node.value_exact<std::string>()) return *text;
    if (const auto number = node.value_exact<int64_t>()) return std::to_string(*number);
    if (const auto number = node.value_exact<double>(); number && std::isfinite(*number))
      return fmt::format("{}", *number);
    if (const auto truth = node.value_exact<bool>()) return *truth ? "true" : "false";
    bad(key, fmt::format("must be a text, a number, true or false, is {}", kind(node)));
  }
  const toml::table* table(std::string_view key) {
    const toml::node* node = find(key);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) bad(key, fmt::format("must be a table [{}], is {}", key, kind(*node)));
    return node->as_table();
  }
  std::vector<const toml::table*> tables(std::string_view key, size_t most) {
    std::vector<const toml::table*> out;
    const toml::node* node = find(key);
    if (node == nullptr) return out;
    const toml::array* list = node->as_array();
    if (list == nullptr) bad(key, fmt::format("must be tables [[{}]], is {}", key, kind(*node)));
    if (list->size() > most) bad(key, fmt::format("must be at most {} tables, are {}", most, list->size()));
    for (const toml::node& entry : *list) {
      if (!entry.is_table()) bad(key, fmt::format("must be tables [[{}]], holds {}", key, kind(entry)));
      out.push_back(entry.as_table());
    }
    return out;
  }

  // After everything was asked for: what is left is a mistake.
  void finish() const {
    for (const auto& [key, value] : table_)
      if (std::find(known_.begin(), known_.end(), key.str()) == known_.end())
        bad(key.str(),
            fmt::format("no such key; {} has {}", where_.empty() ? "a plan" : where_, fmt::join(known_, ", ")));
  }

  static std::string kind(const toml::node& node) {
    std::ostringstream out;
    out << node.type();
    return "a value of kind " + out.str();
  }
  static std::string shown(const toml::node& node) {
    if (const auto number = node.value<double>(); node.is_number() && number) return fmt::format("{}", *number);
    return kind(node);
  }
  static bool variable_name(const std::string& name) {
    return !name.empty() && name.size() <= 256 && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
           std::all_of(name.begin(), name.end(),
                       [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '_'); });
  }
  // A name for people, file names and comments of scripts.
  void label(std::string_view key, std::string& out) {
    text(key, out);
    const bool plain = std::none_of(out.begin(), out.end(), [](unsigned char c) { return c < 32 || c == 127; });
    if (out.empty() || out.size() > 100 || !plain) bad(key, "must have 1 to 100 bytes, none of them a control byte");
  }
  const std::string& file() const { return file_; }

 private:
  const toml::table& table_;
  std::string file_, where_;
  std::vector<std::string> known_;
};

void read_server(Reader& in, ServerPlan& server) {
  in.texts("command", server.command, 1, kMostWords);
  if (in.has("command") && server.command[0].empty()) in.bad("command", "must begin with a program, begins with \"\"");
  in.pairs("env", server.env);
  in.text("model", server.model);
  in.text("served_model", server.served_model);
  in.text("ready", server.ready);
  in.text("endpoint", server.endpoint);
  in.count("port", server.port, 0, 65535);
  in.number("deadline_seconds", server.deadline_seconds, 0.1, 86400);
  in.number("silence_seconds", server.silence_seconds, 0.1, 86400);
  in.number("stop_seconds", server.stop_seconds, 0.1, 3600);
  if (server.endpoint != "chat" && server.endpoint != "completions")
    in.bad("endpoint", fmt::format("must be chat or completions, is \"{}\"", server.endpoint));
  if (server.ready.starts_with("log:")) {
    try {
      diagnose::Pattern compiled(ready_pattern(server));
    } catch (const Error& e) {
      in.bad("ready", fmt::format("must be a regular expression after \"log:\", is not: {}", e.message));
    }
  } else if (!server.ready.starts_with('/')) {
    in.bad("ready", fmt::format("must be a path (\"/health\") or \"log: REGEX\", is \"{}\"", server.ready));
  }
}

void read_canary(Reader in, CanaryPlan& canary) {
  in.flag("logprobs", canary.logprobs);
  in.text("reference", canary.reference);
  in.number("agreement", canary.agreement, 0, 1);
  in.number("seconds", canary.seconds, 0.1, 3600);
  if (!canary.reference.empty() && !canary.reference.starts_with("http://") &&
      !canary.reference.starts_with("https://"))
    in.bad("reference", fmt::format("must be a URL of a server, is \"{}\"", canary.reference));
  for (const toml::table* table : in.tables("prompts", kMostPrompts)) {
    Reader entry(*table, in.file(), "canary.prompts");
    CanaryPrompt prompt;
    std::string match = "exact";
    entry.text("prompt", prompt.prompt);
    entry.text("answer", prompt.answer);
    entry.text("match", match);
    entry.count("max_tokens", prompt.max_tokens, 1, 4096);
    if (prompt.prompt.empty()) entry.bad("prompt", "must not be empty");
    if (match != "exact" && match != "prefix" && match != "contains")
      entry.bad("match", fmt::format("must be exact, prefix or contains, is \"{}\"", match));
    prompt.match = match == "exact" ? Match::kExact : match == "prefix" ? Match::kPrefix : Match::kContains;
    entry.finish();
    canary.prompts.push_back(std::move(prompt));
  }
  in.finish();
}

void read_bench(Reader in, BenchPlan& bench) {
  in.counts("concurrency", bench.concurrency, 1, 1024, 16);
  in.count("requests", bench.requests, 1, 100000);
  in.count("input_words", bench.input_words, 1, 100000);
  in.count("output_tokens", bench.output_tokens, 1, 100000);
  in.texts("prompts", bench.prompts, 1, 1000);
  in.number("seconds", bench.seconds, 0.1, 86400);
  std::sort(bench.concurrency.begin(), bench.concurrency.end());
  if (std::adjacent_find(bench.concurrency.begin(), bench.concurrency.end()) != bench.concurrency.end())
    in.bad("concurrency", "must name each number once");
  in.finish();
}

std::vector<Axis> read_matrix(const toml::table& table, const std::string& file) {
  std::vector<Axis> axes;
  Reader in(table, file, "matrix");
  size_t cells = 1;
  for (const auto& [key, value] : table) {
    Axis axis{std::string(key.str()), {}};
    const bool variable = axis.name.starts_with("env.") && Reader::variable_name(axis.name.substr(4));
    if (!variable && !axis.name.starts_with('-'))
      in.bad(axis.name, fmt::format("must be a flag (\"--flag\") or a variable (\"env.NAME\"), is \"{}\"", axis.name));
    const toml::array* list = value.as_array();
    if (list == nullptr || list->empty() || list->size() > 64)
      in.bad(axis.name, fmt::format("must be a list of 1 to 64 values, is {}", Reader::kind(value)));
    for (const toml::node& entry : *list) axis.values.push_back(in.checked(axis.name, in.plain(axis.name, entry)));
    if (std::set<std::string>(axis.values.begin(), axis.values.end()).size() != axis.values.size())
      in.bad(axis.name, "must name each value once");
    cells *= axis.values.size();
    if (cells > kMostCells) in.bad(axis.name, fmt::format("makes {} cells, at most {} may be", cells, kMostCells));
    axes.push_back(std::move(axis));
  }
  return axes;
}

void read_skips(const toml::table& table, const std::string& file, Plan& plan) {
  Reader in(table, file, "skip");
  in.flag("refused", plan.skip_refused);
  for (const toml::table* rule : in.tables("rules", 64)) {
    Reader entry(*rule, file, "skip.rules");
    SkipRule skip;
    entry.text("axis", skip.axis);
    entry.texts("causes", skip.causes, 1, 64);
    if (!skip.axis.starts_with('-') && !skip.axis.starts_with("env."))
      entry.bad("axis", fmt::format("must be a flag (\"--flag\") or a variable (\"env.NAME\"), is \"{}\"", skip.axis));
    if (skip.causes.empty()) entry.bad("causes", "must name a cause, for instance \"WRONG_SM\"");
    entry.finish();
    plan.skips.push_back(std::move(skip));
  }
  in.finish();
}

Plan read_tables(const toml::table& root, const std::string& path) {
  Plan plan;
  plan.path = std::filesystem::absolute(path).lexically_normal().string();
  plan.folder = std::filesystem::path(plan.path).parent_path().string();
  plan.name = std::filesystem::path(path).stem().string();
  Reader in(root, path, "");
  in.label("name", plan.name);
  in.text("device", plan.device);
  std::string goal = "throughput";
  in.text("goal", goal);
  int log_mib = 16;
  in.count("log_mib", log_mib, 1, 4096);
  plan.log_bytes = static_cast<uint64_t>(log_mib) << 20;
  if (plan.name.find('/') != std::string::npos) in.bad("name", fmt::format("must hold no slash, is \"{}\"", plan.name));
  if (goal != "throughput" && goal != "tpot" && goal != "ttft")
    in.bad("goal", fmt::format("must be throughput, tpot or ttft, is \"{}\"", goal));
  plan.goal = goal == "throughput" ? Goal::kThroughput : goal == "tpot" ? Goal::kTpot : Goal::kTtft;
  if (!plan.device.empty()) {
    try {
      diagnose::Options options;
      options.device = plan.device;
      diagnose::Diagnoser check(options);
    } catch (const Error& e) {
      in.bad("device", e.message);
    }
  }
  if (const toml::table* server = in.table("server")) {
    Reader reader(*server, path, "server");
    read_server(reader, plan.server);
    reader.finish();
  }
  if (const toml::table* canary = in.table("canary")) read_canary(Reader(*canary, path, "canary"), plan.canary);
  if (const toml::table* bench = in.table("bench")) read_bench(Reader(*bench, path, "bench"), plan.bench);
  if (const toml::table* matrix = in.table("matrix")) plan.axes = read_matrix(*matrix, path);
  if (const toml::table* skip = in.table("skip")) read_skips(*skip, path, plan);
  std::vector<ExplicitCell> cells;
  for (const toml::table* table : in.tables("cell", kMostCells)) {
    Reader reader(*table, path, fmt::format("cell {}", cells.size() + 1));
    ExplicitCell cell{"", plan.server, {}};
    reader.label("name", cell.name);
    reader.texts("args", cell.args, 0, kMostWords);
    read_server(reader, cell.server);
    if (cell.server.command.empty()) reader.bad("command", "must be given here or in [server]");
    reader.finish();
    cells.push_back(std::move(cell));
  }
  in.finish();
  if (plan.server.command.empty() && (cells.empty() || !plan.axes.empty()))
    fail(Code::kInvalidRequest,
         fmt::format("{}: server.command: must be given: command = [\"program\", \"flag\"]", path));
  make_cells(plan, cells);
  return plan;
}

}  // namespace

Plan parse_plan(const std::string& text, const std::string& path) {
  if (text.size() > kMostFile)
    fail(Code::kInvalidRequest,
         fmt::format("{}: a plan has at most {} bytes, this one {}", path, kMostFile, text.size()));
  try {
    const toml::table root = toml::parse(text, path);
    return read_tables(root, path);
  } catch (const toml::parse_error& e) {
    fail(Code::kInvalidRequest, fmt::format("{}:{}: no TOML: {}", path, e.source().begin.line, e.description()));
  }
}

Plan read_plan(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec))
    fail(Code::kInvalidRequest, fmt::format("{}: must be a plan file (TOML), {}", path,
                                            std::filesystem::exists(path, ec) ? "is no plain file" : "is not there"));
  std::ifstream in(path, std::ios::binary);
  std::string text(kMostFile + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) fail(Code::kInvalidRequest, fmt::format("{}: cannot be read", path));
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_plan(text, path);
}

}  // namespace mettle::sweep

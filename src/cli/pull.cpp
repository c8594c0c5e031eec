// mettle pull: a model from a Hugging Face style hub into the cache where every command finds it by name.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/terminal.h"
#include "cli/model_flags.h"
#include "hub/hub.h"

namespace mettle {

int command_pull(int argc, char** argv) {
  hub::PullOptions o;
  CLI::App app(
      "Downloads a model from a hub into the cache of its Python client (HF_HUB_CACHE, HF_HOME/hub,\n"
      "~/.cache/huggingface/hub), where mettle and everybody else finds it as owner/name. Goes on where it was\n"
      "interrupted; every file is checked. Prints the folder. The hub is HF_ENDPOINT, the token HF_TOKEN or the file\n"
      "token in HF_HOME.",
      "mettle pull");
  app.footer(
      "Examples:\n  mettle pull Qwen/Qwen3-30B-A3B\n"
      "  mettle pull Qwen/Qwen3-30B-A3B --include '*.json' --include tokenizer.json\n"
      "  HF_ENDPOINT=https://hub.example.org mettle pull org/model --revision v1.1 --exclude 'original/'");
  app.add_option("REPO", o.repository, "owner/name")->required()->check(not_empty());
  app.add_option("--revision", o.revision, "branch, tag or commit")->check(not_empty())->capture_default_str();
  app.add_option("--include", o.include, "only files that match one of these patterns ('*' also matches '/')")
      ->check(not_empty())
      ->allow_extra_args(false);
  app.add_option("--exclude", o.exclude, "not the files that match one of these")
      ->check(not_empty())
      ->allow_extra_args(false);
  app.add_option("--jobs,--max-workers", o.jobs, "connections at once")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  if (const int code = parse_arguments(app, argc, argv); code >= 0) return code;
  const hub::PullOptions defaults = hub::options_of_environment();
  o.endpoint = defaults.endpoint;
  o.token = defaults.token;
  o.cache = defaults.cache;
  std::unique_ptr<Progress> bar;
  o.on_progress = [&](int64_t done, int64_t total) {
    if (bar == nullptr) bar = std::make_unique<Progress>(o.repository, static_cast<uint64_t>(total));
    bar->set(static_cast<uint64_t>(std::max<int64_t>(done, 0)),
             fmt::format("{:.2f} of {:.2f} GB", static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9));
  };
  o.on_note = [](const std::string& line) { say(line + "\n"); };
  const hub::PullResult result = hub::pull(o);
  bar.reset();
  say(fmt::format("{} at {}: {} files, {} bytes, {} of them downloaded now\n", o.repository, result.commit,
                  result.files, result.bytes, result.downloaded_bytes));
  fmt::print("{}\n", result.snapshot.string());
  return 0;
}

}  // namespace mettle

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file_map.h"
#include "checkpoint/model_folder.h"

namespace mettle {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::string find_embedded() {
  if (const std::string own = environment("METTLE_MODEL_DIR"); !own.empty()) {
    if (!is_file(fs::path(own) / "config.json"))
      fail(Code::kBadModel, fmt::format("METTLE_MODEL_DIR={}: must be a folder with config.json", own));
    return own;
  }
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path candidates[] = {here / "mettle-tiny", here / "../models/mettle-tiny",
                                 here / "../share/mettle/models/mettle-tiny"};
  std::vector<std::string> looked;
  for (const fs::path& candidate : candidates) {
    if (is_file(candidate / "config.json")) return candidate.lexically_normal().string();
    looked.push_back(candidate.lexically_normal().string());
  }
  fail(Code::kBadModel,
       fmt::format("the embedded model is not beside the program; looked in METTLE_MODEL_DIR (not set), {}",
                   fmt::join(looked, ", ")));
}

// The folders that may hold "models--owner--name", in the order of huggingface_hub.
fs::path hub_cache() {
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string hub = environment("HUGGINGFACE_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface/hub";
  return fs::path(environment("HOME")) / ".cache/huggingface/hub";
}

bool is_repository_name(const std::string& model) {
  const auto plain = [](const std::string& part) {
    return !part.empty() && part.size() <= 96 && part[0] != '.' && part[0] != '-' &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) {
             return (c < 128 && std::isalnum(c)) || c == '-' || c == '_' || c == '.';
           });
  };
  const size_t slash = model.find('/');
  return slash != std::string::npos && plain(model.substr(0, slash)) && plain(model.substr(slash + 1));
}

// The commit of refs/main, else the only snapshot there is.
std::optional<fs::path> snapshot_of(const fs::path& repository) {
  if (is_file(repository / "refs/main")) {
    std::string commit = read_file((repository / "refs/main").string(), 256);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    if (commit.empty() || !std::all_of(commit.begin(), commit.end(), [](unsigned char c) { return std::isalnum(c); }))
      fail(Code::kBadModel, fmt::format("{}: must hold a commit", (repository / "refs/main").string()));
    return repository / "snapshots" / commit;
  }
  std::vector<fs::path> snapshots;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error)) snapshots.push_back(entry.path());
  if (snapshots.size() != 1) return std::nullopt;
  return snapshots[0];
}

}  // namespace

std::string find_model(const std::string& model) {
  if (model.empty()) return find_embedded();
  if (is_folder(model)) {
    if (!is_file(fs::path(model) / "config.json"))
      fail(Code::kBadModel, fmt::format("{}: must hold config.json, does not", model));
    return model;
  }
  if (is_file(model)) {
    if (fs::path(model).filename() != "config.json")
      fail(Code::kBadModel, fmt::format("{}: must be a folder, a config.json or owner/name, is a file", model));
    const std::string folder = fs::path(model).parent_path().string();
    return folder.empty() ? "." : folder;
  }
  if (!is_repository_name(model))
    fail(Code::kBadModel, fmt::format("{}: no such folder, and not of the form owner/name", model));
  std::string repository = "models--" + model;
  repository.replace(repository.find('/'), 1, "--");
  const fs::path folder = hub_cache() / repository;
  const std::optional<fs::path> snapshot = snapshot_of(folder);
  if (!snapshot || !is_file(*snapshot / "config.json"))
    fail(Code::kBadModel, fmt::format("{}: no such folder, and not downloaded: {} has no config.json", model,
                                      snapshot ? snapshot->string() : (folder / "snapshots").string()));
  return snapshot->string();
}

}  // namespace mettle

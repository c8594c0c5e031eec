#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hub_cache.h"
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
  const fs::path folder = hub_cache() / hub_folder_name(model);
  const std::optional<fs::path> snapshot = snapshot_of(folder);
  if (!snapshot || !is_file(*snapshot / "config.json"))
    fail(Code::kBadModel, fmt::format("{}: no such folder, and not downloaded: {} has no config.json", model,
                                      snapshot ? snapshot->string() : (folder / "snapshots").string()));
  return snapshot->string();
}

}  // namespace mettle

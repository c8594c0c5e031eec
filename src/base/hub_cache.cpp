#include "base/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace mettle {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_plain(const std::string& part) {
  return !part.empty() && part.size() <= 96 && part[0] != '.' && part[0] != '-' &&
         std::all_of(part.begin(), part.end(),
                     [](unsigned char c) { return (c < 128 && std::isalnum(c)) || c == '-' || c == '_' || c == '.'; });
}

}  // namespace

fs::path hub_home() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home;
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "huggingface";
  return fs::path(environment("HOME")) / ".cache/huggingface";
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string hub = environment(name); !hub.empty()) return hub;
  return hub_home() / "hub";
}

std::string hub_folder_name(const std::string& repository) {
  std::string name = "models--" + repository;
  if (const size_t slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  return name;
}

bool is_repository_name(const std::string& name) {
  const size_t slash = name.find('/');
  return slash != std::string::npos && is_plain(name.substr(0, slash)) && is_plain(name.substr(slash + 1));
}

}  // namespace mettle

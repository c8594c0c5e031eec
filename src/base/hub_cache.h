// Where models of a Hugging Face style hub lie on this machine, in the order in which its Python client looks.
#pragma once
#include <filesystem>
#include <string>

namespace mettle {

// HF_HOME, else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface.
std::filesystem::path hub_home();
// HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else hub_home()/hub.
std::filesystem::path hub_cache();
// Inside hub_cache(): models--owner--name.
std::string hub_folder_name(const std::string& repository);
// owner/name, each of letters, digits, '-', '_' and '.', not beginning with '-' or '.'.
bool is_repository_name(const std::string& name);

}  // namespace mettle

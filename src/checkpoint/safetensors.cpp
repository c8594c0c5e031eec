#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_index.h"

namespace mettle {

namespace fs = std::filesystem;

struct Safetensors::File {
  explicit File(const std::string& path) : map(path) { known = ::stat(path.c_str(), &identity) == 0; }
  FileMap map;
  struct stat identity = {};
  bool known = false;
};

Safetensors::Safetensors() = default;
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

namespace {

constexpr size_t kMaxIndexBytes = size_t{128} << 20;

// Only regular files: opening a pipe would wait for somebody to write into it.
bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string weight_files_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors" || extension == ".bin" || extension == ".gguf" || extension == ".pth")
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) return "no weight files";
  std::string text = names[0];
  for (size_t i = 1; i < std::min<size_t>(names.size(), 4); ++i) text += ", " + names[i];
  return names.size() > 4 ? fmt::format("{} and {} more", text, names.size() - 4) : text;
}

}  // namespace

Safetensors Safetensors::open(const std::string& folder) {
  const std::string single = folder + "/model.safetensors", index = single + ".index.json";
  if (is_file(single)) return open_file(single);
  if (!is_file(index))
    fail(Code::kBadModel, fmt::format("{}: must hold model.safetensors or model.safetensors.index.json, found {}",
                                      folder, weight_files_in(folder)));
  const auto map = read_weight_map(read_file(index, kMaxIndexBytes), index);
  Safetensors s;
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map) shards.insert(file);
  for (const std::string& shard : shards) {
    if (!is_file(folder + "/" + shard))
      fail(Code::kBadModel, fmt::format("{}/{}: shard named by {} is missing ({} shards named)", folder, shard,
                                        fs::path(index).filename().string(), shards.size()));
    s.add_file(folder + "/" + shard);
  }
  s.make_index();
  for (const auto& [tensor, file] : map) {
    const StoredTensor* found = s.find(tensor);
    if (found == nullptr || found->file->path() != folder + "/" + file)
      fail(Code::kBadModel, fmt::format("{}: says that {} is in {}, but {}", index, tensor, file,
                                        found == nullptr ? "no shard holds it" : "it is in " + found->file->path()));
  }
  return s;
}

Safetensors Safetensors::open_file(const std::string& path) {
  Safetensors s;
  s.add_file(path);
  s.make_index();
  return s;
}

void Safetensors::add_file(const std::string& path) {
  files_.push_back(std::make_unique<File>(path));
  const FileMap& map = files_.back()->map;
  std::vector<StoredTensor> tensors = read_safetensors_header(map.bytes(), path);
  map.check_intact();
  for (StoredTensor& t : tensors) {
    t.file = &map;
    tensors_.push_back(std::move(t));
  }
}

void Safetensors::make_index() {
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [at, added] = index_.emplace(tensors_[i].name, i);
    if (!added)
      fail(Code::kBadModel, fmt::format("{}: {}: is in {} too", tensors_[i].file->path(), tensors_[i].name,
                                        tensors_[at->second].file->path()));
  }
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &tensors_[at->second];
}

size_t Safetensors::bytes() const {
  size_t bytes = 0;
  for (const StoredTensor& t : tensors_) bytes += t.bytes;
  return bytes;
}

void Safetensors::check_intact() const {
  for (const auto& file : files_) {
    file->map.check_intact();
    // A cut within the last page raises no signal: the bytes read as zeros. A file put in the place of this one is
    // another inode and leaves the map as it was.
    struct stat now = {};
    if (!file->known || ::stat(file->map.path().c_str(), &now) != 0) continue;
    if (now.st_dev != file->identity.st_dev || now.st_ino != file->identity.st_ino) continue;
    if (static_cast<size_t>(now.st_size) < file->map.size())
      fail(Code::kBadModel, fmt::format("{}: shrank while it was read, from {} bytes to {}", file->map.path(),
                                        file->map.size(), now.st_size));
  }
}

}  // namespace mettle

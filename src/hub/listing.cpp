#include "hub/listing.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "hub/names.h"

namespace mettle::hub {
namespace {

using nlohmann::json;

constexpr size_t kMostListingBytes = size_t{64} << 20;
constexpr size_t kMostFiles = 100'000;
constexpr int kMostDepth = 32;
constexpr int64_t kMostFileBytes = int64_t{1} << 44;  // 16 TiB
constexpr int64_t kMostTotalBytes = int64_t{1} << 46;

json parse(std::string_view text, const std::string& source) {
  try {
    return json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > kMostDepth) fail(Code::kBadModel, fmt::format("{}: is nested deeper than {}", source, kMostDepth));
      return true;
    });
  } catch (const json::exception& e) {
    fail(Code::kBadModel, fmt::format("{}: must be JSON, is not: {}", source, printable(e.what())));
  }
}

const json* find(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string text_in(const json& object, const char* key) {
  const json* value = find(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

int64_t size_in(const json& object) {
  const json* value = find(object, "size");
  if (value == nullptr || !value->is_number_integer()) return -1;
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(kMostFileBytes)) return -1;
  return value->get<int64_t>();
}

RemoteFile read_file(const json& entry, const std::string& source) {
  RemoteFile file;
  file.name = text_in(entry, "rfilename");
  if (const std::string fault = fault_of_file_name(file.name); !fault.empty())
    fail(Code::kBadModel, fmt::format("{}: file name \"{}\" {}", source, printable(file.name), fault));
  const json* lfs = find(entry, "lfs");
  if (lfs != nullptr) {
    file.size = size_in(*lfs);
    file.sum = text_in(*lfs, "sha256");
    if (file.sum.empty()) file.sum = text_in(*lfs, "oid");
  } else {
    file.kind = Checksum::kGitBlob;
    file.size = size_in(entry);
    file.sum = text_in(entry, "blobId");
  }
  if (file.size < 0 || file.size > kMostFileBytes)
    fail(Code::kBadModel, fmt::format("{}: {}: must have a size in 0..{}", source, file.name, kMostFileBytes));
  if (!is_hex(file.sum, lfs != nullptr ? 64 : 40))
    fail(Code::kBadModel, fmt::format("{}: {}: must have a {} in hexadecimal, got \"{}\"", source, file.name,
                                      lfs != nullptr ? "sha256" : "git blob id", printable(file.sum)));
  return file;
}

void check_names(const std::vector<RemoteFile>& files, const std::string& source) {
  std::set<std::string_view> names;
  for (const RemoteFile& f : files)
    if (!names.insert(f.name).second) fail(Code::kBadModel, fmt::format("{}: names {} twice", source, f.name));
  for (const RemoteFile& f : files)
    for (size_t slash = f.name.find('/'); slash != std::string::npos; slash = f.name.find('/', slash + 1))
      if (names.contains(std::string_view(f.name).substr(0, slash)))
        fail(Code::kBadModel,
             fmt::format("{}: {} is a file and a folder of {}", source, f.name.substr(0, slash), f.name));
}

}  // namespace

Listing parse_listing(std::string_view text, const std::string& source) {
  const json all = parse(text, source);
  Listing listing;
  listing.commit = text_in(all, "sha");
  if (!is_hex(listing.commit, 40))
    fail(Code::kBadModel, fmt::format("{}: sha must be a commit, got \"{}\"", source, printable(listing.commit)));
  const json* siblings = find(all, "siblings");
  if (siblings == nullptr || !siblings->is_array() || siblings->empty())
    fail(Code::kBadModel, fmt::format("{}: siblings must be a list of files, and is not", source));
  if (siblings->size() > kMostFiles)
    fail(Code::kBadModel, fmt::format("{}: must have at most {} files, has {}", source, kMostFiles, siblings->size()));
  int64_t total = 0;
  for (const json& entry : *siblings) {
    listing.files.push_back(read_file(entry, source));
    total += listing.files.back().size;
    if (total > kMostTotalBytes)
      fail(Code::kBadModel, fmt::format("{}: must have at most {} bytes, has more", source, kMostTotalBytes));
  }
  check_names(listing.files, source);
  return listing;
}

Listing fetch_listing(Session& session, const std::string& endpoint, const std::string& repository,
                      const std::string& revision) {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint, quoted(repository, true),
                                      quoted(revision, false));
  const std::string what = fmt::format("{} at {}", repository, revision);
  const HttpReply reply = session.get_patiently({.url = url, .body_limit = kMostListingBytes}, what);
  return parse_listing(reply.body, what);
}

}  // namespace mettle::hub

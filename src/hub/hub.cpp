#include "hub/hub.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hub_cache.h"
#include "hub/cache_folder.h"
#include "hub/listing.h"
#include "hub/names.h"
#include "hub/transfer.h"

namespace mettle::hub {
namespace {

namespace fs = std::filesystem;

// Beside what is downloaded: links, refs, books.
constexpr int64_t kSpareBytes = int64_t{16} << 20;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string trimmed(std::string text) {
  const auto space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && space(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), space));
  return text;
}

std::string find_token() {
  std::string token = trimmed(environment("HF_TOKEN"));
  if (token.empty()) token = trimmed(environment("HUGGING_FACE_HUB_TOKEN"));
  const std::string named = environment("HF_TOKEN_PATH");
  const fs::path path = named.empty() ? hub_home() / "token" : fs::path(named);
  std::error_code error;
  if (token.empty() && fs::is_regular_file(path, error)) token = trimmed(read_file(path.string(), 4096));
  if (token.size() > 4096 ||
      std::any_of(token.begin(), token.end(), [](unsigned char c) { return c <= ' ' || c > '~'; }))
    fail(Code::kInvalidRequest,
         fmt::format("token (HF_TOKEN or {}): must be up to 4096 printable characters without blanks, has {}",
                     path.string(), token.size()));
  return token;
}

bool is_on(const std::string& flag) {
  std::string text = flag;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

void check(const PullOptions& o) {
  if (!is_repository_name(o.repository))
    fail(Code::kInvalidRequest, fmt::format("REPO: must be owner/name of letters, digits, '-', '_' and '.', got \"{}\"",
                                            printable(o.repository)));
  if (const std::string fault = fault_of_revision(o.revision); !fault.empty())
    fail(Code::kInvalidRequest, fmt::format("--revision: \"{}\" {}", printable(o.revision), fault));
  if (o.jobs < 1 || o.jobs > 64) fail(Code::kInvalidRequest, fmt::format("--jobs: must be in 1..64, got {}", o.jobs));
}

std::vector<RemoteFile> wanted_of(const Listing& listing, const PullOptions& o) {
  std::vector<RemoteFile> wanted;
  std::string some;
  for (const RemoteFile& f : listing.files) {
    if (is_wanted(f.name, o.include, o.exclude)) wanted.push_back(f);
    if (&f - listing.files.data() < 5) some += fmt::format("{}{}", some.empty() ? "" : ", ", f.name);
  }
  if (wanted.empty())
    fail(Code::kInvalidRequest,
         fmt::format("--include, --exclude: must leave at least one of {} files, leave none; there are {}{}",
                     listing.files.size(), some, listing.files.size() > 5 ? ", ..." : ""));
  return wanted;
}

int64_t allocated_bytes(const fs::path& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_blocks) * 512 : 0;
}

void check_space(const CacheFolder& cache, const std::vector<RemoteFile>& missing) {
  int64_t need = kSpareBytes;
  for (const RemoteFile& f : missing) {
    need += f.size;
    for (const char* tail : {".mettle.incomplete", ".incomplete"})  // blocks that are taken already
      need -= allocated_bytes(cache.blob(f.sum + tail));
  }
  if (const int64_t free = cache.free_bytes(); free < need)
    fail(Code::kDevice,
         fmt::format("{}: must have {:.2f} GB free for what is to come, has {:.2f} GB", cache.folder().string(),
                     static_cast<double>(need) / 1e9, static_cast<double>(free) / 1e9));
}

}  // namespace

PullOptions options_of_environment() {
  PullOptions o;
  o.endpoint = environment("HF_ENDPOINT");
  if (o.endpoint.empty()) o.endpoint = "https://huggingface.co";
  while (o.endpoint.ends_with('/')) o.endpoint.pop_back();
  if (origin_of(o.endpoint).empty() || o.endpoint.find_first_of("?#") != std::string::npos)
    fail(Code::kInvalidRequest,
         fmt::format("HF_ENDPOINT: must be a http or https URL without user name and query, got \"{}\"",
                     printable(o.endpoint)));
  if (is_on(environment("HF_HUB_OFFLINE")))
    fail(Code::kInvalidRequest, "HF_HUB_OFFLINE: is set, and nothing can be pulled without the network; unset it");
  o.token = find_token();
  o.cache = hub_cache();
  return o;
}

PullResult pull(const PullOptions& o) {
  check(o);
  const SessionOptions session_options{.endpoint = o.endpoint, .token = o.token, .stop = nullptr, .on_note = o.on_note};
  Session session(session_options);
  const Listing listing = fetch_listing(session, o.endpoint, o.repository, o.revision);
  const std::vector<RemoteFile> wanted = wanted_of(listing, o);
  const CacheFolder cache(o.cache, o.repository);

  PullResult result{.snapshot = cache.snapshot(listing.commit), .commit = listing.commit, .files = std::ssize(wanted)};
  std::set<std::string> seen;
  std::vector<RemoteFile> missing;
  int64_t total = 0, done = 0;
  for (const RemoteFile& f : wanted) {
    result.bytes += f.size;
    if (!seen.insert(f.sum).second) continue;
    total += f.size;
    if (cache.has_blob(f))
      done += f.size;
    else
      missing.push_back(f);
  }
  check_space(cache, missing);
  const auto progress = [&](int64_t more) {
    done += more;
    if (o.on_progress) o.on_progress(done, total);
  };
  progress(0);
  if (!missing.empty())
    result.downloaded_bytes = transfer(
        cache, {.url_prefix = fmt::format("{}/{}/resolve/{}/", o.endpoint, quoted(o.repository, true), listing.commit),
                .blobs = missing,
                .jobs = std::min<int>(o.jobs, 64),
                .session = session_options,
                .on_bytes = progress});
  for (const RemoteFile& f : wanted) cache.link(listing.commit, f);
  cache.write_ref(o.revision, listing.commit);
  return result;
}

}  // namespace mettle::hub

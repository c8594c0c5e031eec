// Downloads a model from a Hugging Face style hub into the cache that its Python client uses: same folders, same links,
// same locks, so both may work on one cache at the same time. Everything that comes from the server is untrusted.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mettle::hub {

struct PullOptions {
  std::string repository;                     // owner/name
  std::string revision = "main";              // branch, tag or commit
  std::vector<std::string> include, exclude;  // patterns of whole file names, '*' also matches '/'; none: all files
  int jobs = 8;                               // connections at once
  std::string endpoint;                       // https://huggingface.co
  std::string token;                          // empty: none. Goes to the endpoint's host and port alone
  std::filesystem::path cache;                // of the hub
  std::function<void(int64_t done, int64_t total)> on_progress;  // bytes; calls come one at a time
  std::function<void(const std::string& line)> on_note;          // retries, waiting; calls come one at a time
};

struct PullResult {
  std::filesystem::path snapshot;  // the folder with config.json
  std::string commit;
  int64_t files = 0, bytes = 0;  // of the snapshot as far as it was asked for
  int64_t downloaded_bytes = 0;  // of them now
};

// From HF_ENDPOINT, HF_TOKEN (or the file HF_TOKEN_PATH, or hub_home()/token), HF_HUB_CACHE and what it falls back to.
// Fails with kInvalidRequest: no URL, a token with characters that no header may hold, HF_HUB_OFFLINE is set.
PullOptions options_of_environment();

// Interrupted at any time it leaves what can be continued; a snapshot's ref is written when all of its files are there.
// Fails with kInvalidRequest (names, patterns that match nothing), kBadModel (not there, not allowed, sizes or
// checksums that contradict what the hub said) or kDevice (network, disk).
PullResult pull(const PullOptions& options);

}  // namespace mettle::hub

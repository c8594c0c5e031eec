// Brings blobs into a cache folder over several connections at once.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache_folder.h"
#include "hub/session.h"

namespace mettle::hub {

struct TransferRequest {
  std::string url_prefix;         // ENDPOINT/OWNER/NAME/resolve/COMMIT/
  std::vector<RemoteFile> blobs;  // each content once; name: one of those it has
  int jobs = 1;
  SessionOptions session;                      // stop is set here
  std::function<void(int64_t more)> on_bytes;  // that are there now; negative when some have to come again
};

// Returns the bytes that were downloaded. Fails as pull() does; the first failure stops all connections.
int64_t transfer(const CacheFolder& cache, TransferRequest request);

}  // namespace mettle::hub

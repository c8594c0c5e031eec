// What a hub says is in a repository at a revision.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hub/checksum.h"
#include "hub/session.h"

namespace mettle::hub {

struct RemoteFile {
  std::string name;
  int64_t size = 0;
  std::string sum;  // names the content, and the blob in the cache
  Checksum kind = Checksum::kSha256;
};

struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;
};

// Of the JSON of /api/models/NAME/revision/REVISION?blobs=true. Fails with kBadModel: not that, no commit, names that
// fault_of_file_name() refuses, a name twice or as a file and as a folder, sizes or sums missing or out of range.
Listing parse_listing(std::string_view json, const std::string& source);
Listing fetch_listing(Session& session, const std::string& endpoint, const std::string& repository,
                      const std::string& revision);

}  // namespace mettle::hub

// Checksums that name the contents of files on a hub.
#pragma once
#include <cstdint>
#include <string>

namespace mettle::hub {

enum class Checksum : uint8_t { kSha256, kGitBlob };  // of large files; of small ones: sha1("blob <size>\0" + content)

// In lower-case hexadecimal. Fails with kDevice when the file cannot be read.
std::string checksum_of_file(int fd, int64_t size, Checksum kind);

}  // namespace mettle::hub

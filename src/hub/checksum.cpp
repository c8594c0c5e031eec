#include "hub/checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"

namespace mettle::hub {

std::string checksum_of_file(int fd, int64_t size, Checksum kind) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const EVP_MD* digest = kind == Checksum::kSha256 ? EVP_sha256() : EVP_sha1();
  CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), digest, nullptr) == 1, "no digest");
  const auto update = [&](const void* data, size_t bytes) {
    CHECK(EVP_DigestUpdate(context.get(), data, bytes) == 1, "digest");
  };
  if (kind == Checksum::kGitBlob) {
    const std::string head = fmt::format("blob {}", size);
    update(head.c_str(), head.size() + 1);
  }
  std::vector<uint8_t> piece(size_t{1} << 20);
  for (int64_t at = 0; at < size;) {
    const ssize_t got = pread(fd, piece.data(), piece.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail(Code::kDevice, fmt::format("download: must be readable again, {} of {} bytes are: {}", at, size,
                                      got < 0 ? std::strerror(errno) : "it ends there"));
    update(piece.data(), static_cast<size_t>(std::min<int64_t>(got, size - at)));
    at += got;
  }
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  CHECK(EVP_DigestFinal_ex(context.get(), sum, &length) == 1, "digest");
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", sum[i]);
  return text;
}

}  // namespace mettle::hub

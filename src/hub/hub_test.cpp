#include "hub/hub.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "hub/cache_folder.h"
#include "hub/checksum.h"
#include "hub/listing.h"
#include "hub/names.h"
#include "hub/partial_file.h"

namespace mettle::hub {
namespace {

namespace fs = std::filesystem;

class Hub : public testing::Test {
 protected:
  std::string content_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST(HubNames, FilesThatMayBeMade) {
  for (const char* name : {"config.json", "a/b/c.bin", ".gitattributes", "..a", "a..b", "ä/ö", "a b"})
    EXPECT_EQ(fault_of_file_name(name), "") << name;
  for (const char* name : {"", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "a/.", "a\\b", "a\tb", "\x7F",
                           "\xFF", "\xC3", "\xC0\xAF", "\xF5\x80\x80\x80"})
    EXPECT_NE(fault_of_file_name(name), "") << name;
  EXPECT_NE(fault_of_file_name(std::string("a\0b", 3)), "");
  EXPECT_NE(fault_of_file_name(std::string(256, 'a')), "");
  std::string deep = "a";
  while (deep.size() <= 1024) deep += "/a";
  EXPECT_NE(fault_of_file_name(deep), "");
}

TEST(HubNames, Patterns) {
  EXPECT_TRUE(matches("a/b.bin", "*.bin"));
  EXPECT_TRUE(matches("a/b/c", "a/"));
  EXPECT_FALSE(matches("ab/c", "a/"));
  EXPECT_TRUE(matches("model-1.bin", "model-[0-9].bin"));
  EXPECT_FALSE(matches("A.bin", "a.bin"));
  EXPECT_TRUE(is_wanted("x", {}, {}));
  EXPECT_FALSE(is_wanted("x.bin", {"x*"}, {"*.bin"}));
  EXPECT_FALSE(is_wanted("y", {"x*"}, {}));
}

TEST(HubNames, Quoted) {
  EXPECT_EQ(quoted("a/b c%41.bin", true), "a/b%20c%2541.bin");
  EXPECT_EQ(quoted("refs/pr/1", false), "refs%2Fpr%2F1");
  EXPECT_EQ(quoted("\xC3\xA4?#", true), "%C3%A4%3F%23");
}

TEST(HubNames, Origins) {
  EXPECT_EQ(origin_of("https://Hub.Example/x"), "https://hub.example:443");
  EXPECT_EQ(origin_of("http://h:8080?x"), "http://h:8080");
  EXPECT_EQ(origin_of("http://[::1]:80/"), "http://[::1]:80");
  EXPECT_NE(origin_of("http://h:80/"), origin_of("http://h:81/"));
  for (const char* url : {"", "h/x", "ftp://h/", "file:///etc/passwd", "http://", "http://u@h/", "http://h:0/",
                          "http://h:99999/", "http://h:80x/", "http://h/a b", "http://h/\r\n", "http://h\\@evil/"})
    EXPECT_EQ(origin_of(url), "") << url;
}

TEST(HubNames, Locations) {
  EXPECT_EQ(resolved("https://h/a/b?c", "https://x/y"), "https://x/y");
  EXPECT_EQ(resolved("https://h:1/a/b?c", "/y?z=http://q"), "https://h:1/y?z=http://q");
  EXPECT_EQ(resolved("https://h/a/b?c=/d", "y"), "https://h/a/y");
  EXPECT_EQ(resolved("https://h/a", "//x/y"), "https://x/y");
  EXPECT_EQ(resolved("https://h/a", "javascript://x"), "");
  EXPECT_EQ(resolved("https://h/a", ""), "");
}

TEST_F(Hub, ChecksumsOfKnownContent) {
  const fs::path path = folder_ / "x";
  std::ofstream(path) << "abc";
  const Descriptor file(open(path.c_str(), O_RDONLY));
  EXPECT_EQ(checksum_of_file(file.get(), 3, Checksum::kSha256),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // git hash-object of "abc" without a newline, and of nothing
  EXPECT_EQ(checksum_of_file(file.get(), 3, Checksum::kGitBlob), "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f");
  EXPECT_EQ(checksum_of_file(file.get(), 0, Checksum::kGitBlob), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_THROW(checksum_of_file(file.get(), 4, Checksum::kSha256), Error);
}

RemoteFile remote(int64_t size) { return {"f", size, std::string(64, 'a'), Checksum::kSha256}; }

TEST_F(Hub, PartialFileGoesOnWhereItStopped) {
  const CacheFolder cache(folder_, "org/model");
  const RemoteFile file = remote(2 * kChunkBytes + 3);
  {
    PartialFile partial(cache, file, cache.try_lock(file.sum));
    ASSERT_EQ(partial.chunks(), 3);
    EXPECT_EQ(partial.end_of(2), file.size);
    partial.write(partial.begin_of(2), "xyz");
    partial.set_done(2);
    EXPECT_LT(cache.try_lock(file.sum).get(), 0);  // held
  }
  PartialFile partial(cache, file, cache.try_lock(file.sum));
  EXPECT_TRUE(partial.is_done(2));
  EXPECT_FALSE(partial.is_done(0));
  EXPECT_EQ(partial.done_bytes(), 3);
  partial.start_over();
  EXPECT_EQ(partial.done_bytes(), 0);
  partial.discard();
  EXPECT_TRUE(fs::is_empty(folder_ / "models--org--model/blobs"));
}

TEST_F(Hub, PartialFileOfAnotherSizeIsBegunAnew) {
  const CacheFolder cache(folder_, "org/model");
  {
    PartialFile partial(cache, remote(5), cache.try_lock("x"));
    partial.set_done(0);
  }
  const PartialFile partial(cache, remote(6), cache.try_lock("x"));
  EXPECT_FALSE(partial.is_done(0));
}

TEST_F(Hub, DamagedBooksOfTheRightSizeAreNotBelieved) {
  const CacheFolder cache(folder_, "org/model");
  const RemoteFile file = remote(5);
  {
    PartialFile partial(cache, file, cache.try_lock(file.sum));
    partial.set_done(0);
  }
  int damaged = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "models--org--model/blobs")) {
    if (fs::file_size(entry) == 5) continue;  // what was loaded itself
    std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary) << '#';
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
  const PartialFile partial(cache, file, cache.try_lock(file.sum));
  EXPECT_FALSE(partial.is_done(0));
}

TEST_F(Hub, PublishedBlobAndItsLink) {
  const CacheFolder cache(folder_, "org/model");
  RemoteFile file = remote(3);
  file.name = "sub/f";
  PartialFile partial(cache, file, cache.try_lock(file.sum));
  partial.write(0, "abc");
  partial.set_done(0);
  partial.publish();
  EXPECT_TRUE(cache.has_blob(file));
  file.size = 4;
  EXPECT_FALSE(cache.has_blob(file));
  for (int twice = 0; twice < 2; ++twice) {
    cache.link("c0ffee", file);
    EXPECT_EQ(content_of(cache.snapshot("c0ffee") / "sub/f"), "abc");
  }
  // A file in the way is replaced.
  fs::remove(cache.snapshot("c0ffee") / "sub/f");
  std::ofstream(cache.snapshot("c0ffee") / "sub/f") << "old";
  cache.link("c0ffee", file);
  EXPECT_EQ(content_of(cache.snapshot("c0ffee") / "sub/f"), "abc");
  EXPECT_EQ(std::distance(fs::directory_iterator(cache.snapshot("c0ffee") / "sub"), {}), 1);
}

TEST(HubListing, LargeAndSmallFiles) {
  const std::string sha1(40, '1'), sha256(64, '2');
  const Listing l = parse_listing(R"({"sha": ")" + sha1 + R"(", "siblings": [
      {"rfilename": "a", "size": 130, "blobId": ")" +
                                      sha1 + R"(", "lfs": {"sha256": ")" + sha256 + R"(", "size": 7}},
      {"rfilename": "b", "size": 5, "blobId": ")" +
                                      sha1 + R"("}]})",
                                  "test");
  EXPECT_EQ(l.commit, sha1);
  ASSERT_EQ(l.files.size(), 2u);
  EXPECT_EQ(l.files[0].size, 7);
  EXPECT_EQ(l.files[0].sum, sha256);
  EXPECT_EQ(l.files[1].size, 5);
  EXPECT_EQ(l.files[1].kind, Checksum::kGitBlob);
}

}  // namespace
}  // namespace mettle::hub

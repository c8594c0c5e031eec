#include "diagnose/log_reader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/temporary_folder.h"

namespace mettle::diagnose {
namespace {

namespace fs = std::filesystem;

class LogReaderTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) { return folder_.write(name, content); }
  std::string pack(const std::string& text) {
    z_stream z{};
    deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY);
    std::string out(deflateBound(&z, text.size()) + 32, '\0');
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.resize(out.size() - z.avail_out);
    deflateEnd(&z);
    return out;
  }
  // "file:number:line" of each.
  std::vector<std::string> read(const std::string& path, size_t limit = 100) {
    std::vector<std::string> lines;
    std::string file;
    LogReader reader({[&](const std::string& name) { file = fs::path(name).filename(); },
                      [&](std::string_view line, uint64_t number) {
                        lines.push_back(file + ":" + std::to_string(number) + ":" + std::string(line));
                      }},
                     limit);
    reader.read_path(path);
    remarks_ = reader.remarks();
    return lines;
  }
  std::string error_of(const std::string& path) {
    try {
      read(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kInvalidRequest);
      return e.message;
    }
    return "no error";
  }

  TemporaryFolder folder_;
  std::vector<std::string> remarks_;
  using V = std::vector<std::string>;
};

TEST_F(LogReaderTest, LinesWithAndWithoutAnEnd) {
  EXPECT_EQ(read(write("a", "one\n\nthree")), (V{"a:1:one", "a:2:", "a:3:three"}));
  EXPECT_EQ(read(write("a", "")), V{});
  EXPECT_EQ(read(write("a", "\n")), (V{"a:1:"}));
  EXPECT_EQ(read(write("a", "\xef\xbb\xbfone\n")), (V{"a:1:one"}));
  EXPECT_EQ(read(write("a", std::string("\xff\xfe"
                                        "o\0k\0\n\0x\0",
                                        10))),
            (V{"a:1:ok", "a:2:x"}));
}

TEST_F(LogReaderTest, LongLinesAreCutAndTheNextOneIsWhole) {
  const std::string block(size_t{3} << 20, 'x');
  const std::vector<std::string> lines = read(write("a", block + "\nnext\n" + block));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "a:1:" + std::string(100, 'x'));
  EXPECT_EQ(lines[1], "a:2:next");
  EXPECT_EQ(lines[2].size(), 104u);
}

TEST_F(LogReaderTest, GzipAlsoSeveralMembersAndPadding) {
  EXPECT_EQ(read(write("a.gz", pack("one\ntw") + pack("o\n") + std::string(512, '\0'))),
            (V{"a.gz:1:one", "a.gz:2:two"}));
}

TEST_F(LogReaderTest, CutGzipIsReadUpToThereAndSaid) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "line " + std::to_string(i * 7919) + "\n";
  const std::string packed = pack(text);
  const std::vector<std::string> lines = read(write("a.gz", packed.substr(0, packed.size() / 2)));
  EXPECT_GT(lines.size(), 5000u);
  EXPECT_LT(lines.size(), 20000u);
  ASSERT_EQ(remarks_.size(), 1u);
  EXPECT_NE(remarks_[0].find("ends too early"), std::string::npos);
}

TEST_F(LogReaderTest, DamagedGzipIsAnErrorWithItsPlace) {
  std::string packed = pack(std::string(100000, 'a') + "\nb\n");
  packed[packed.size() - 6] ^= 1;  // the checksum
  const std::string message = error_of(write("a.gz", packed));
  EXPECT_NE(message.find("a.gz: must be a whole gzip file, at byte "), std::string::npos) << message;
}

TEST_F(LogReaderTest, FoldersByNameWithoutWhatIsNoText) {
  write("d/b.log", "b\n");
  write("d/a/z.log", "z\n");
  write("d/c.bin", std::string("\x7f"
                               "ELF\0\0",
                               6));
  EXPECT_EQ(read(folder_ / "d"), (V{"z.log:1:z", "b.log:1:b"}));
}

TEST_F(LogReaderTest, WhatCannotBeReadIsToldWithItsPath) {
  EXPECT_NE(error_of(folder_ / "none").find("none: must be a log file or a folder: No such file"), std::string::npos);
  fs::create_directories(folder_ / "empty");
  EXPECT_NE(error_of(folder_ / "empty").find("empty: must hold a log file, is empty"), std::string::npos);
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_NE(error_of(folder_ / "loop").find("loop: must be a log file or a folder: "), std::string::npos);
}

TEST_F(LogReaderTest, MemoryDoesNotGrowWithTheFile) {
  const std::string path = write("big", "");
  {
    std::ofstream out(path, std::ios::binary);
    const std::string block(size_t{1} << 20, 'y');
    for (int i = 0; i < 64; ++i) out << block << (i % 16 == 0 ? "\n" : "");
  }
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  uint64_t lines = 0;
  LogReader reader({[](const std::string&) {}, [&](std::string_view, uint64_t) { ++lines; }}, size_t{1} << 16);
  reader.read_path(path);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(reader.bytes(), (uint64_t{64} << 20) + 4);
  EXPECT_EQ(lines, 5u);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10);  // KiB
}

}  // namespace
}  // namespace mettle::diagnose

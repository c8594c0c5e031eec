// Time to load a tokenizer.json, and the speed of encoding and decoding the given files on one core.
//   tokenizer_bench TOKENIZER.json FILE...
// Each figure is the best of seven runs, in processor time. "warm" encodes a file again with the word cache that it
// left, "cold" with an empty one.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_map.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using mettle::Tokenizer;

constexpr int kRuns = 7;

// Processor time of this thread: all the work is here, and other programs on the machine do not count.
double seconds(const auto& work) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

std::string text_of(const std::string& path) {
  std::string text;
  mettle::unicode::append_lossy(mettle::read_file(path, 64 << 20), /*last=*/true, text);
  return text;
}

void measure(const std::string& model, const std::string& name, const std::string& text) {
  double cold = 1e9, warm = 1e9, decode = 1e9;
  std::vector<int32_t> ids;
  for (int run = 0; run < kRuns; ++run) {
    const Tokenizer tokenizer = Tokenizer::from_file(model);
    cold = std::min(cold, seconds([&] { ids = tokenizer.encode(text); }));
    warm = std::min(warm, seconds([&] { ids = tokenizer.encode(text); }));
    std::string back;
    decode = std::min(decode, seconds([&] { back = tokenizer.decode(ids, /*skip_special=*/false); }));
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("%-24s %7.2f MB %9zu ids  encode cold %6.1f MB/s, warm %6.1f MB/s  decode %6.1f MB/s\n", name.c_str(),
              megabytes, ids.size(), megabytes / cold, megabytes / warm, megabytes / decode);
}

int run(int argc, char** argv) {
  double load = 1e9;
  int32_t tokens = 0;
  for (int i = 0; i < kRuns; ++i) {
    load = std::min(load, seconds([&] { tokens = Tokenizer::from_file(argv[1]).vocab_size(); }));
  }
  std::printf("load %.3f s, %d tokens\n", load, tokens);
  std::string word;
  while (word.size() < 3'000'000) word += static_cast<char>('a' + word.size() * word.size() % 23);
  measure(argv[1], "one word", word);
  for (int i = 2; i < argc; ++i) measure(argv[1], std::filesystem::path(argv[i]).filename(), text_of(argv[i]));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fputs("usage: tokenizer_bench TOKENIZER.json FILE...\n", stderr), 2;
  try {
    return run(argc, argv);
  } catch (const mettle::Error& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
}

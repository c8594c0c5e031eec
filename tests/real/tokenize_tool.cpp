// Encodes and decodes strings for run_tokenizers.py.
//   tokenize_tool TOKENIZER.json < strings > results
// Input: per string its length (uint32) and its bytes. Output: per string the number of ids (uint32), the ids (int32),
// then the text of the ids with and without special tokens, each as length and bytes. On standard error: seconds.
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

namespace {

bool read_exactly(void* data, size_t size) { return std::fread(data, 1, size, stdin) == size; }

void write_counted(const void* data, uint32_t count, size_t item_bytes) {
  std::fwrite(&count, sizeof(count), 1, stdout);
  std::fwrite(data, item_bytes, count, stdout);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int run(const char* path) {
  auto start = std::chrono::steady_clock::now();
  const mettle::Tokenizer tokenizer = mettle::Tokenizer::from_file(path);
  std::fprintf(stderr, "load %.3f s\n", seconds_since(start));
  double encoding = 0;
  size_t bytes = 0;
  for (uint32_t length; read_exactly(&length, sizeof(length));) {
    std::string text(length, '\0');
    if (!read_exactly(text.data(), length))
      return std::fputs("tokenize_tool: the input ends within a string\n", stderr), 1;
    start = std::chrono::steady_clock::now();
    const auto ids = tokenizer.encode(text);
    encoding += seconds_since(start);
    bytes += length;
    write_counted(ids.data(), static_cast<uint32_t>(ids.size()), sizeof(ids[0]));
    for (const bool skip_special : {false, true}) {
      const std::string decoded = tokenizer.decode(ids, skip_special);
      write_counted(decoded.data(), static_cast<uint32_t>(decoded.size()), 1);
    }
  }
  std::fprintf(stderr, "encode %.3f s, %.1f MB/s\n", encoding, static_cast<double>(bytes) / 1e6 / encoding);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: tokenize_tool TOKENIZER.json < strings > results\n", stderr), 2;
  try {
    return run(argv[1]);
  } catch (const mettle::Error& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
}

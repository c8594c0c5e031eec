// Arbitrary bytes as a log, whole and as a file: heads, wrappers, tracebacks, tables, gzip; the answer stays bounded.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "diagnose/diagnose.h"

namespace {

void check(const mettle::diagnose::Diagnosis& d) {
  if (d.cause.empty() || d.sentence.empty()) std::abort();
  if (d.evidence.size() > 16 || d.misleading.size() > 16 || d.notes.size() > 16) std::abort();
  for (const mettle::diagnose::Line& line : d.evidence)
    if (line.line == 0 || line.text.size() > 600) std::abort();
  if (mettle::diagnose::to_json(d).empty()) std::abort();
  for (const char c : mettle::diagnose::to_text(d, false))
    if (c == '\x1b') std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  {
    mettle::diagnose::Options options;
    options.line_limit = 512;
    if (size % 3 == 0) options.exit_code = 137;
    if (size % 5 == 0) options.silent_s = 700;
    mettle::diagnose::Diagnoser d(options);
    d.read_text(bytes, "log");
    check(d.finish());
  }
  // As a file, where gzip is unpacked.
  if (size < 3 || data[0] != 0x1f) return 0;
  static const mettle::TemporaryFolder folder;
  static const std::string path = folder / "log";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return 0;
  std::fwrite(data, 1, size, file);
  std::fclose(file);
  try {
    mettle::diagnose::Diagnoser d;
    d.read_path(path);
    check(d.finish());
  } catch (const mettle::Error& error) {
    if (error.code != mettle::Code::kInvalidRequest || error.message.empty()) std::abort();
  }
  return 0;
}

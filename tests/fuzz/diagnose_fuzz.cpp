// Arbitrary bytes as a log, whole and as a file: heads, wrappers, tracebacks, tables, gzip; the answer stays bounded.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "diagnose/diagnose.h"
#include "diagnose/line_head.h"
#include "diagnose/line_time.h"

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

// The head of one line: views into it, none beyond its end. The line has an allocation of its own size.
void check_line(std::string_view given) {
  const std::vector<char> exact(given.begin(), given.end());
  const std::string_view line(exact.data(), exact.size());
  std::string clean, text;
  mettle::diagnose::strip_terminal_codes(line, clean);
  if (clean.size() > line.size() || clean.find('\x1b') != std::string::npos) std::abort();
  if (mettle::diagnose::unwrap_json(line, text) && text.size() > 2 * line.size() + 1) std::abort();
  const std::vector<char> cleaned(clean.begin(), clean.end());
  const std::string_view whole(cleaned.data(), cleaned.size());
  const mettle::diagnose::Head head = mettle::diagnose::parse_head(whole);
  if (!whole.ends_with(head.body)) std::abort();
  if (!head.rank.empty() && whole.find(head.rank) == std::string_view::npos) std::abort();
  if (mettle::diagnose::rank_label(head.rank).size() > head.rank.size() + 8) std::abort();
  if (mettle::diagnose::parse_time(whole).length > whole.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (size_t at = 0; at < size;) {
    const size_t end = std::min(bytes.find('\n', at), size);
    check_line(bytes.substr(at, end - at));
    at = end + 1;
  }
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

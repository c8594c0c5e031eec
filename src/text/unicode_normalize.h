// Unicode normal forms. NFC is the one that models use: it skips text that is normal already, and it agrees with
// Hugging Face's `tokenizers`, whose tables are those of Unicode 9.0. The others follow utf8proc (Unicode 15.0).
#pragma once
#include <string>
#include <string_view>

namespace mettle::unicode {

enum class Form { kNfc, kNfd, kNfkc, kNfkd };

// The normal form of valid UTF-8. Time is n log n at most, whatever the marks.
std::string normalize(std::string_view text, Form form);

}  // namespace mettle::unicode

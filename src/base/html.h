// Text that came from outside, as a page shows it.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace mettle {

// For HTML and SVG, in attributes too: markup escaped; control characters, text-direction marks and what is no UTF-8
// become U+FFFD; cut behind `most` code points.
std::string html_text(std::string_view text, size_t most = 4000);

}  // namespace mettle

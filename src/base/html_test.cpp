#include "base/html.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace mettle {
namespace {

TEST(HtmlText, EscapesMarkupAndWhatMisleads) {
  for (const auto& [text, shown] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"plain words", "plain words"},
           {"<a href=\"x\">'&amp;", "&lt;a href=&quot;x&quot;&gt;&#39;&amp;amp;"},
           {"größer \u2264 \U0001F600", "größer \u2264 \U0001F600"},
           {std::string("a\0b", 3), "a\uFFFDb"},
           {"\x1b[31m", "\uFFFD[31m"},
           {"a\x80z", "a\uFFFDz"},
           {"cut \xE2\x82", "cut \uFFFD\uFFFD"},
           {"\xC0\xAF overlong \xE0\x80\xAF", "\uFFFD\uFFFD overlong \uFFFD\uFFFD\uFFFD"},
           {"\xED\xA0\x80 surrogate", "\uFFFD\uFFFD\uFFFD surrogate"},
           {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
           {"turned \u202E around \u2066", "turned \uFFFD around \uFFFD"},
           {"\uFFFF", "\uFFFD"},
           {"two\nlines", "two\nlines"}})
    EXPECT_EQ(html_text(text), shown) << text;
  EXPECT_EQ(html_text("abcdef", 3), "abc…");
  EXPECT_EQ(html_text("äöü", 3), "äöü");
  EXPECT_EQ(html_text(std::string(100'000, '<')).size(), 4000 * 4 + std::string("…").size());
}

}  // namespace
}  // namespace mettle

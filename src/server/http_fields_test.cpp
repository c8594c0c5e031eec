#include "server/http_fields.h"

#include <gtest/gtest.h>

namespace mettle {
namespace {

TEST(HttpFields, DatesAreThoseOfTheRfc) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(http_date(1709251199), "Thu, 29 Feb 2024 23:59:59 GMT");
  EXPECT_EQ(http_date(4102444800), "Fri, 01 Jan 2100 00:00:00 GMT");
  const std::time_t before = std::time(nullptr);
  const std::string now = http_date_now();
  const std::time_t after = std::time(nullptr);
  bool found = false;
  for (std::time_t t = before; t <= after; ++t) found = found || now == http_date(t);
  EXPECT_TRUE(found) << now;
}

TEST(HttpFields, WhatAHostMayHold) {
  for (const char* good : {"", "x", "localhost:30000", "127.0.0.1", "[::1]:80", "a-b_c.example", "%41.example"})
    EXPECT_TRUE(is_host(good)) << good;
  for (const char* bad : {"a b", "a, b", "http://a", "a/b", "user@a", "a?b", "a#b", "a\tb", "a\"", "<a>", "\xc3\xa4"})
    EXPECT_FALSE(is_host(bad)) << bad;
}

TEST(HttpFields, WordsAreTheSameInAnyCase) {
  EXPECT_TRUE(same_word("", "") && same_word("http", "HttP") && same_word("a/b-1", "A/B-1"));
  for (const char* other : {"", "htt", "https", "ht[p", "ht\x14p"}) EXPECT_FALSE(same_word("http", other)) << other;
  EXPECT_FALSE(same_word("\xc3\xa4", "\xc3\x84"));
}

TEST(HttpFields, NamesThatNoWebsiteHas) {
  for (const char* local : {"", "localhost", "localhost:30000", "LocalHost.", "api.localhost:1", "127.0.0.1",
                            "127.0.0.1:30000", "192.168.1.7:80", "8.8.8.8", "[::1]", "[::1]:30000", "::1", "gpu-box",
                            "gpu-box:8000", "gpu.local", "host.docker.internal:30000", "GPU.LOCAL."})
    EXPECT_TRUE(is_local_host(local)) << local;
  for (const char* foreign : {"evil.example", "evil.example:30000", "127.0.0.1.evil.example", "localhost.evil.example",
                              "local.example", "notlocalhost.example.", "1.2.3.4.5", "127.0.0.1:evil.example",
                              "256.0.0.1", "xn--nxasmq6b.example", "evil%2eexample"})
    EXPECT_FALSE(is_local_host(foreign)) << foreign;
  EXPECT_FALSE(is_local_host(std::string(100'000, 'a')));
}

}  // namespace
}  // namespace mettle

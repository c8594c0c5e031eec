#include "server/http_target.h"

#include <gtest/gtest.h>

namespace mettle {
namespace {

HttpTarget taken(std::string_view method, std::string_view target) {
  const auto result = http_target(method, target);
  const auto* error = std::get_if<ApiError>(&result);
  EXPECT_EQ(error, nullptr) << target << ": " << error->message;
  return error == nullptr ? std::get<HttpTarget>(result) : HttpTarget{};
}

ApiError refused(std::string_view method, std::string_view target) {
  const auto result = http_target(method, target);
  const auto* error = std::get_if<ApiError>(&result);
  EXPECT_NE(error, nullptr) << method << " " << target << ": taken as " << std::get<HttpTarget>(result).path;
  return error != nullptr ? *error : ApiError{.status = 0};
}

TEST(HttpTarget, TakesTheThreeFormsOfARequestToAServer) {
  struct Case {
    const char *method, *target, *path, *query, *authority;
  };
  for (const Case& c : {
           Case{"GET", "/", "/", "", ""},
           Case{"GET", "/a?b?c", "/a", "b?c", ""},
           Case{"GET", "/a?", "/a", "", ""},
           Case{"GET", "//localhost/a", "//localhost/a", "", ""},
           Case{"GET", "/http://x/a", "/http://x/a", "", ""},
           Case{"OPTIONS", "*", "*", "", ""},
           Case{"GET", "http://127.0.0.1:8000/v1/models", "/v1/models", "", "127.0.0.1:8000"},
           Case{"POST", "HTTP://LocalHost/v1?a=b", "/v1", "a=b", "LocalHost"},
           Case{"GET", "http://[::1]:8000/a%20b", "/a%20b", "", "[::1]:8000"},
           Case{"GET", "http://x:1", "/", "", "x:1"},
           Case{"GET", "http://x?a=/b", "/", "a=/b", "x"},
           Case{"GET", "http://x//a", "//a", "", "x"},
           Case{"GET", "http://x/http://y/", "/http://y/", "", "x"},
           Case{"GET", "http://x:/a", "/a", "", "x:"},
           Case{"OPTIONS", "http://x", "*", "", "x"},
           Case{"OPTIONS", "http://x/", "/", "", "x"},
           Case{"OPTIONS", "http://x?a", "/", "a", "x"},
           // Whoever comes through a forwarded port knows no other.
           Case{"GET", "http://localhost:1/a", "/a", "", "localhost:1"},
       }) {
    const HttpTarget t = taken(c.method, c.target);
    EXPECT_EQ(t.path, c.path) << c.target;
    EXPECT_EQ(t.query, c.query) << c.target;
    EXPECT_EQ(t.authority, c.authority) << c.target;
  }
}

TEST(HttpTarget, RefusesWhatNamesNoHost) {
  for (const char* target :
       {"http://", "http:///a", "http://:80/a", "http://?a", "http://user@localhost/", "http://user:word@localhost/a",
        "http://evil.example@127.0.0.1/", "http://evil.example\\@127.0.0.1/", "http://localhost#@evil.example/",
        "http://x#a", "http://x\"/", "http://\xc3\xa4/"}) {
    const ApiError error = refused("GET", target);
    EXPECT_EQ(error.status, 400) << target;
    EXPECT_EQ(error.message,
              "request target: must name a host, and a port, without a user or a fragment, got " + std::string(target));
  }
}

TEST(HttpTarget, RefusesOtherSchemesTunnelsAndWhatIsNoTarget) {
  for (const char* target : {"https://localhost/v1/models", "ftp://localhost/", "ws://x/", "httpx://x/", "h://x/",
                             "file:///etc", "git+ssh://x/"})
    EXPECT_EQ(refused("GET", target).status, 421) << target;
  EXPECT_EQ(refused("GET", "https://localhost/").message,
            "request target: this server has no other scheme than http, got https");
  for (const char* target : {"", "*", "**", "a", "x:443", "a/b", "?", "http:/x/a", "http:x", "://x/", "1http://x/",
                             "ht tp://x/", "javascript:alert(1)//://x", "#"})
    EXPECT_EQ(refused("GET", target).status, 400) << target;
  EXPECT_EQ(refused("OPTIONS", "*?a").status, 400);
  for (const char* target : {"x:443", "http://x/", "*", "/"})
    EXPECT_EQ(refused("CONNECT", target).status, 501) << target;
  for (const std::string& target : {std::string(100'000, 'a'), std::string(100'000, 'a') + "://x/"})
    EXPECT_LT(refused("GET", target).message.size(), 300u) << "no more of a target is told than helps";
}

}  // namespace
}  // namespace mettle

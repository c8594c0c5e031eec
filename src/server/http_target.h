// What the first line of a request asks for, RFC 9112 3.2.
#pragma once
#include <string>
#include <string_view>
#include <variant>

#include "server/api_error.h"

namespace mettle {

struct HttpTarget {
  std::string path;  // without the query, percent-encoded as it came; "*" of OPTIONS: the server itself
  std::string query;
  std::string authority;  // of an absolute target, in place of Host; else empty
};

// Takes /path?query, http://host:port/path?query, and * with OPTIONS. The port may be any: whoever comes through a
// forwarded one knows no other. A target of another scheme was meant for somebody else: 421.
std::variant<HttpTarget, ApiError> http_target(std::string_view method, std::string_view target);

}  // namespace mettle

// A request as Beast reads it: what is refused of it, and what the rest of the program sees. For http.cpp alone.
#pragma once
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string_view>
#include <variant>

#include "server/api_error.h"
#include "server/http.h"

namespace mettle {

using HttpParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

void limit(HttpParser& parser, const HttpOptions& options);

// RFC 9112 2.2: an empty line before a request line is no mistake, clients of old sent one behind a body. So many are
// skipped before each request; the next one is refused as no HTTP.
inline constexpr int kEmptyLines = 8;
// Whether `bytes` begin with an empty line; nothing: more of them must come to tell.
std::optional<bool> begins_with_empty_line(std::string_view bytes);
inline constexpr size_t kEmptyLine = 2;  // bytes of one

// What a client is told about a request that could not be read; nothing when it just left.
std::optional<ApiError> read_failure(const boost::system::error_code& ec, const HttpOptions& options);

// The request without its body, of a complete header, or what that is refused for. Before anything of the body is read:
// Beast puts the trailers of a chunked body among the fields, and no trailer may be a key, a type or a host. RFC 9112
// 3.2: whoever answers to several names could not tell which one was meant without one Host, which must also stand
// beside a target that names one.
std::variant<HttpRequest, ApiError> take_head(const HttpParser& parser);

// A client that holds its body back until it is told to send it.
bool waits_for_continue(const HttpParser& parser);

}  // namespace mettle

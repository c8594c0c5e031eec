// A request as Beast reads it: what is refused of it, and what the rest of the program sees. For http.cpp alone.
#pragma once
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <variant>

#include "server/api_error.h"
#include "server/http.h"

namespace mettle {

using HttpParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

void limit(HttpParser& parser, const HttpOptions& options);

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

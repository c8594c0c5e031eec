#include "server/http_read.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <utility>

#include "base/error.h"
#include "server/http_fields.h"
#include "server/http_target.h"

namespace mettle {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

std::string text_of(beast::string_view text) { return {text.data(), text.size()}; }

ApiError bad_http(const error_code& ec) { return {400, "not an HTTP request: " + ec.message(), {}, "bad_http"}; }

// Where a body in an unknown transfer coding ends cannot be told, nor then where the next request begins; what was
// packed before it was cut into chunks cannot be read.
bool has_unreadable_body(const HttpParser& parser) {
  const size_t codings = parser.get().count(http::field::transfer_encoding);
  return codings > 1 || (codings == 1 && !beast::iequals(parser.get()[http::field::transfer_encoding], "chunked"));
}

}  // namespace

void limit(HttpParser& parser, const HttpOptions& options) {
  parser.header_limit(static_cast<uint32_t>(options.header_limit));
  parser.body_limit(options.body_limit);
}

std::optional<bool> begins_with_empty_line(std::string_view bytes) {
  if (bytes.empty() || bytes == "\r") return std::nullopt;
  return bytes.starts_with("\r\n");
}

std::optional<ApiError> read_failure(const error_code& ec, const HttpOptions& options) {
  if (ec == http::error::body_limit)
    return ApiError{413, "body: at most " + std::to_string(options.body_limit) + " bytes", {}, "body_too_large"};
  if (ec == http::error::header_limit)
    return ApiError{431, "header: at most " + std::to_string(options.header_limit) + " bytes", {}, "header_too_large"};
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) return std::nullopt;
  if (ec.category() == http::make_error_code(http::error::bad_method).category()) return bad_http(ec);
  return std::nullopt;
}

std::variant<HttpRequest, ApiError> take_head(const HttpParser& parser) {
  if (has_unreadable_body(parser)) return bad_http(http::error::bad_transfer_encoding);
  const auto& message = parser.get();
  const size_t hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11))
    return ApiError{400, "Host: must stand exactly once in a request, got " + std::to_string(hosts), {}, "bad_host"};
  HttpRequest request;
  request.host = text_of(message[http::field::host]);
  if (!is_host(request.host))
    return ApiError{
        400, "Host: must be a name or an address, and a port, got " + request.host.substr(0, 200), {}, "bad_host"};
  request.method = text_of(message.method_string());
  auto target = http_target(request.method, text_of(message.target()));
  if (auto* failure = std::get_if<ApiError>(&target)) return std::move(*failure);
  auto& [path, query, authority] = std::get<HttpTarget>(target);
  request.path = std::move(path);
  request.query = std::move(query);
  if (!authority.empty()) request.host = std::move(authority);
  request.authorization = text_of(message[http::field::authorization]);
  request.content_type = text_of(message[http::field::content_type]);
  request.content_encoding = text_of(message[http::field::content_encoding]);
  return request;
}

// RFC 9110 10.1.1: in any case, and never of HTTP/1.0.
bool waits_for_continue(const HttpParser& parser) {
  return parser.get().version() >= 11 && beast::iequals(parser.get()[http::field::expect], "100-continue");
}

HttpRequest parse_http(std::string_view bytes, const HttpOptions& options) {
  for (int i = 0; i < kEmptyLines && begins_with_empty_line(bytes).value_or(false); ++i)
    bytes.remove_prefix(kEmptyLine);
  HttpParser parser;
  limit(parser, options);
  error_code ec;
  const auto read = [&] {
    while (!parser.is_done() && !ec && !bytes.empty()) {
      const size_t used = parser.put(boost::asio::buffer(bytes.data(), bytes.size()), ec);
      if (used == 0 || (!parser.eager() && parser.is_header_done())) return bytes.remove_prefix(used);
      bytes.remove_prefix(used);
    }
  };
  read();
  if (!ec && parser.is_header_done()) {
    auto head = take_head(parser);
    if (const auto* failure = std::get_if<ApiError>(&head)) fail(Code::kInvalidRequest, failure->message);
    auto& request = std::get<HttpRequest>(head);
    parser.eager(true);
    read();
    if (!ec && parser.is_done()) {
      request.body = std::move(parser.get().body());
      return std::move(request);
    }
  }
  const auto failure = read_failure(ec, options);
  fail(Code::kInvalidRequest, failure ? failure->message : "request: incomplete");
}

}  // namespace mettle

#include "server/http_target.h"

#include <algorithm>
#include <cctype>

#include "server/http_fields.h"

namespace mettle {
namespace {

constexpr size_t kToldBytes = 200;

ApiError bad_target(const std::string& requirement, std::string_view target) {
  return {
      400, "request target: " + requirement + ", got " + std::string(target.substr(0, kToldBytes)), {}, "bad_target"};
}

// RFC 3986 3.1; empty: no scheme stands there.
std::string_view scheme_of(std::string_view target) {
  const size_t end = target.find("://");
  if (end == std::string_view::npos || end == 0 || std::isalpha(static_cast<unsigned char>(target[0])) == 0) return {};
  const bool all = std::all_of(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(end), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  });
  return all ? target.substr(0, end) : std::string_view{};
}

void take_path(std::string_view text, HttpTarget& to) {
  const size_t question = text.find('?');
  to.path = text.substr(0, question);
  if (question != std::string_view::npos) to.query = text.substr(question + 1);
}

}  // namespace

std::variant<HttpTarget, ApiError> http_target(std::string_view method, std::string_view target) {
  if (method == "CONNECT") return ApiError{501, "CONNECT: this server opens no tunnels", {}, "no_tunnels"};
  HttpTarget result;
  if (target.starts_with('/') || (target == "*" && method == "OPTIONS")) {
    take_path(target, result);
    return result;
  }
  const std::string_view scheme = scheme_of(target);
  if (scheme.empty()) return bad_target("must be a path or an absolute URL, or * with OPTIONS", target);
  if (!same_word(scheme, "http"))
    return ApiError{
        421,
        "request target: this server has no other scheme than http, got " + std::string(scheme.substr(0, kToldBytes)),
        {},
        "misdirected"};
  const std::string_view rest = target.substr(scheme.size() + 3);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  result.authority = rest.substr(0, end);
  if (result.authority.empty() || result.authority.front() == ':' || !is_host(result.authority))
    return bad_target("must name a host, and a port, without a user or a fragment", target);
  take_path(rest.substr(end), result);
  if (result.path.empty()) result.path = method == "OPTIONS" && end == rest.size() ? "*" : "/";
  return result;
}

}  // namespace mettle

#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace mettle {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

nlohmann::ordered_json text_or_null(std::string_view text) {
  if (text.empty()) return nullptr;
  return text;
}

}  // namespace

std::string error_body(const ApiError& error) {
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", error.message},
                                         {"type", type_of(error.status)},
                                         {"param", text_or_null(error.param)},
                                         {"code", text_or_null(error.code)}}}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_body(error)};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

ApiError api_error(const Error& error) {
  switch (error.code) {
    case Code::kInvalidRequest:
      return {400, error.message, error.param, {}};
    case Code::kUnsupported:
      return {400, error.message, error.param, "unsupported"};
    case Code::kBusy:
      return {429, error.message, error.param, "server_busy"};
    case Code::kBadModel:
    case Code::kDevice:
    case Code::kInternal:
      break;
  }
  log::error("server: {}", error.message);
  return {500, "internal error; the server's log has the details", {}, "internal_error"};
}

}  // namespace mettle

// Error answers in the form OpenAI clients expect.
#pragma once
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http.h"

namespace mettle {

struct ApiError {
  int status = 500;
  std::string message;
  std::string param;      // request field at fault; empty: null
  std::string_view code;  // machine-readable; empty: null
};

// {"error":{"message","type","param","code"}}
std::string error_body(const ApiError& error);
// With Retry-After for 429 and 503.
HttpResponse error_response(const ApiError& error);
// The answer for an Error: 400, 429, 500. The text of an internal error stays in the log.
ApiError api_error(const Error& error);

}  // namespace mettle

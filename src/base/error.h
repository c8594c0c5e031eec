// The one error type. Thrown by fail(); caught in the HTTP handler, the engine's step loop and main only.
// Message form: "subject: requirement, what came", always with the values:
//   moe.scales: must be [8, 256, 8] e4m3 (experts, rows, k/16), got [8, 256, 16]
#pragma once
#include <exception>
#include <string>
#include <utility>

namespace mettle {

enum class Code {
  kInvalidRequest,  // the client or the command line sent it      400, exit 2
  kBadModel,        // files missing, damaged or contradictory     refuses to start, exit 1
  kUnsupported,     // no backend or model for it                  refuses to start, exit 1; 501 for a feature
  kBusy,            // queue or cache full                         429/503
  kDevice,          // the device or the machine failed            500, exit 1
  kInternal,        // a check of ours failed                      500, exit 1
};

class Error : public std::exception {
 public:
  // `param` names the request field at fault (kInvalidRequest), else empty.
  Error(Code code, std::string message, std::string param = {})
      : code(code), message(std::move(message)), param(std::move(param)) {}
  const char* what() const noexcept override { return message.c_str(); }

  Code code;
  std::string message;
  std::string param;
};

[[noreturn]] void fail(Code code, std::string message, std::string param = {});

}  // namespace mettle

// CHECK(cond, message): an invariant of our own; message is a std::string expression, evaluated only on failure.
#define CHECK(cond, message)                                                                                \
  do {                                                                                                      \
    if (!(cond)) ::mettle::fail(::mettle::Code::kInternal, std::string(#cond ": ") + std::string(message)); \
  } while (0)

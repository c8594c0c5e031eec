#include "base/error.h"

namespace mettle {

void fail(Code code, std::string message, std::string param) {
  throw Error(code, std::move(message), std::move(param));
}

}  // namespace mettle

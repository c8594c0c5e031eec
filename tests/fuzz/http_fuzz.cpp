// Arbitrary bytes as an HTTP request, and as the JSON body of each endpoint: read, limited, validated; no sockets.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "server/http.h"
#include "server/json_limits.h"
#include "server/openai_request.h"

namespace {

// Runs a parser; bad input is an Error that is the client's fault, anything else is a bug.
template <class F>
void try_parse(F&& parse) {
  try {
    parse();
  } catch (const mettle::Error& error) {
    if (error.code != mettle::Code::kInvalidRequest || error.message.empty()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const mettle::HttpOptions options{.header_limit = 4096, .body_limit = size_t{1} << 16};
  const mettle::RequestContext context{.vocab_size = 6144, .context_length = 4096};
  std::string body(bytes);
  try_parse([&] { body = mettle::parse_http(bytes, options).body; });
  try_parse([&] {
    const mettle::ChatRequest request = mettle::parse_chat_request(body, context);
    if (request.messages.empty() || request.sampling.max_tokens < 1 || request.n < 1 || request.n > 16) std::abort();
    // What was taken is stable: normalising it again changes nothing.
    if (mettle::normalise_messages(request.messages) != request.messages) std::abort();
  });
  try_parse([&] {
    const mettle::TextRequest request = mettle::parse_text_request(body, context);
    if (request.prompts.empty()) std::abort();
    for (const auto& prompt : request.prompts)
      if (const auto* ids = std::get_if<1>(&prompt))
        for (const int32_t id : *ids)
          if (id < 0 || id >= context.vocab_size) std::abort();
  });
  return 0;
}

// Arbitrary bytes as an HTTP request, and as the JSON body of each endpoint: read, limited, validated; no sockets.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

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

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr mettle::RequestContext kContext{.vocab_size = 6144, .context_length = 4096};

// The target is cut where its first question mark stands, an absolute one before its path too; nothing of it is lost.
void check_target(std::string_view bytes, const mettle::HttpRequest& request) {
  require(!request.method.empty());
  const size_t at = bytes.find(request.method + " ");
  require(at != std::string_view::npos);
  std::string_view target = bytes.substr(at + request.method.size() + 1);
  target = target.substr(0, target.find(' '));
  const size_t question = std::min(target.find('?'), target.size());
  require(request.query == target.substr(std::min(question + 1, target.size())));
  std::string_view path = target.substr(0, question);
  if (!path.starts_with('/') && path != "*") {
    require(path.find("://" + request.host) == 4 && !request.host.empty());  // behind "http"
    path = path.substr(7 + request.host.size());
    if (path.empty()) path = request.method == "OPTIONS" && question == target.size() ? "*" : "/";
  }
  require(request.path == path);
}

// What was taken keeps to the ranges that the API promises.
void check_fields(const mettle::GenerationFields& fields) {
  const mettle::SamplingParams& s = fields.sampling;
  const auto within = [](double v, double least, double most) { require(v >= least && v <= most); };
  const auto is_token = [](int32_t id) { return id >= 0 && id < kContext.vocab_size; };
  within(s.temperature, 0, 2);
  within(s.top_p, 1e-6, 1);
  within(s.min_p, 0, 1);
  within(s.repetition, 0.01, 10);
  within(s.presence, -2, 2);
  within(s.frequency, -2, 2);
  within(s.top_k, 0, kContext.vocab_size - 1);
  within(s.top_logprobs, -1, 20);
  within(fields.n, 1, 16);
  require(s.max_tokens >= 1 && s.min_tokens >= 0 && s.min_tokens <= kContext.context_length);
  require(!fields.max_tokens_given || s.min_tokens <= s.max_tokens);
  require(s.stop_ids.size() <= 64 && s.logit_bias.size() <= 1024 && fields.stop.size() <= 16);
  for (const int32_t id : s.stop_ids) require(is_token(id));
  for (const auto& [id, bias] : s.logit_bias) require(is_token(id) && bias >= -100 && bias <= 100);
  for (const std::string& stop : fields.stop) require(!stop.empty() && stop.size() <= 1024);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const mettle::HttpOptions options{.header_limit = 4096, .body_limit = size_t{1} << 16};
  std::string body(bytes);
  try_parse([&] {
    mettle::HttpRequest request = mettle::parse_http(bytes, options);
    check_target(bytes, request);
    body = std::move(request.body);
    require(body.size() <= options.body_limit);
  });
  // Of the size it has: a read beyond its end is a read beyond an allocation.
  const std::vector<char> exact(body.begin(), body.end());
  const std::string_view json(exact.data(), exact.size());
  try_parse([&] {
    const mettle::ChatRequest request = mettle::parse_chat_request(json, kContext);
    check_fields(request);
    require(!request.messages.empty());
    // What was taken is stable: normalising it again changes nothing.
    require(mettle::normalise_messages(request.messages) == request.messages);
  });
  try_parse([&] {
    const mettle::TextRequest request = mettle::parse_text_request(json, kContext);
    check_fields(request);
    require(!request.prompts.empty() && request.prompts.size() * static_cast<size_t>(request.n) <= 128);
    for (const auto& prompt : request.prompts)
      if (const auto* ids = std::get_if<1>(&prompt))
        for (const int32_t id : *ids) require(id >= 0 && id < kContext.vocab_size);
  });
  return 0;
}

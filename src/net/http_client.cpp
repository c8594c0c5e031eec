#include "net/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/error.h"

namespace mettle::net {
namespace {

constexpr size_t kMostHeaderBytes = size_t{256} << 10;

void start_library() {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  CHECK(started == CURLE_OK, curl_easy_strerror(started));
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

// What the callbacks of one exchange share.
struct Exchange {
  const HttpRequest& request;
  HttpReply reply;
  CURL* curl = nullptr;
  size_t header_bytes = 0, body_bytes = 0;
  bool head_whole = false, head_told = false, stopped = false, too_large = false;

  bool tell_head() {
    if (head_told) return true;
    head_told = true;
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    reply.status = static_cast<int>(status);
    return request.on_head == nullptr || request.on_head(reply);
  }
};

// Callbacks answer "not all taken" to end the exchange; exceptions of the caller's functions may not cross the library.
size_t on_header(char* data, size_t size, size_t count, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  const std::string_view line(data, size * count);
  exchange.header_bytes += line.size();
  if (exchange.header_bytes > kMostHeaderBytes) {
    exchange.too_large = true;
    return 0;
  }
  if (line.starts_with("HTTP/")) {  // of the reply that counts, not of a redirect
    exchange.reply.headers.clear();
    exchange.head_whole = false;
  }
  if (trimmed(line).empty()) exchange.head_whole = true;  // and stays so when trailers follow
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return line.size();
  std::string name(trimmed(line.substr(0, colon)));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  exchange.reply.headers.emplace_back(std::move(name), trimmed(line.substr(colon + 1)));
  return line.size();
}

size_t on_body(char* data, size_t size, size_t count, void* self) {
  auto& exchange = *static_cast<Exchange*>(self);
  const std::string_view piece(data, size * count);
  if (!exchange.tell_head()) {
    exchange.stopped = true;
    return 0;
  }
  exchange.body_bytes += piece.size();
  if (exchange.body_bytes > exchange.request.body_limit) {
    exchange.too_large = true;
    return 0;
  }
  if (exchange.request.on_body == nullptr)
    exchange.reply.body.append(piece);
  else if (!exchange.request.on_body(piece)) {
    exchange.stopped = true;
    return 0;
  }
  return piece.size();
}

int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& exchange = *static_cast<Exchange*>(self);
  if (exchange.request.stop == nullptr || !exchange.request.stop->load(std::memory_order_relaxed)) return 0;
  exchange.stopped = true;
  return 1;
}

HttpEnd end_of(CURLcode code, bool connected) {
  switch (code) {
    case CURLE_OK:
      return HttpEnd::kDone;
    case CURLE_UNSUPPORTED_PROTOCOL:  // of the URL, or spoken by who answered
      return connected ? HttpEnd::kCut : HttpEnd::kRefused;
    case CURLE_OPERATION_TIMEDOUT:
      return HttpEnd::kTimeout;
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
      return HttpEnd::kRefused;
    default:
      return HttpEnd::kCut;
  }
}

}  // namespace

const char* name_of(HttpEnd end) {
  switch (end) {
    case HttpEnd::kDone:
      return "done";
    case HttpEnd::kRefused:
      return "refused";
    case HttpEnd::kTimeout:
      return "timeout";
    case HttpEnd::kCut:
      return "cut";
    case HttpEnd::kTooLarge:
      return "too_large";
    case HttpEnd::kStopped:
      return "stopped";
  }
  return "?";
}

std::string_view HttpReply::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

struct HttpClient::Handle {
  Handle() {
    start_library();
    curl = curl_easy_init();
    CHECK(curl != nullptr, "no HTTP handle");
  }
  ~Handle() { curl_easy_cleanup(curl); }
  CURL* curl = nullptr;
};

HttpClient::HttpClient() : handle_(std::make_unique<Handle>()) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

HttpReply HttpClient::send(const HttpRequest& request) {
  CURL* curl = handle_->curl;
  curl_easy_reset(curl);  // keeps the connections
  Exchange exchange{.request = request, .reply = {}, .curl = curl};
  char why[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(curl, option, value); };
  set(CURLOPT_ERRORBUFFER, why);
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOPROXY, "127.0.0.1,localhost,::1");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TCP_NODELAY, 1L);
  set(CURLOPT_FOLLOWLOCATION, request.redirects > 0 ? 1L : 0L);
  set(CURLOPT_MAXREDIRS, static_cast<long>(request.redirects));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_seconds * 1e3));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.total_seconds * 1e3));
  if (request.silence_seconds > 0) {
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(request.silence_seconds)));
  }
  set(CURLOPT_HEADERFUNCTION, on_header);
  set(CURLOPT_HEADERDATA, &exchange);
  set(CURLOPT_WRITEFUNCTION, on_body);
  set(CURLOPT_WRITEDATA, &exchange);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, on_progress);
  set(CURLOPT_XFERINFODATA, &exchange);
  if (!request.body.empty()) {
    set(CURLOPT_POSTFIELDS, request.body.data());
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  if (request.method == "HEAD")
    set(CURLOPT_NOBODY, 1L);
  else if (request.method != "GET" || !request.body.empty())
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_slist* list = curl_slist_append(nullptr, "Expect:");  // else a body over 1 MiB waits a second for "continue"
  for (const auto& [name, value] : request.headers)
    list = curl_slist_append(list, fmt::format("{}: {}", name, value).c_str());
  set(CURLOPT_HTTPHEADER, list);

  CURLcode code = curl_easy_perform(curl);
  HttpReply& reply = exchange.reply;
  if (code == CURLE_OK && !exchange.head_whole) {  // the library takes headers that end anywhere
    code = CURLE_PARTIAL_FILE;
    exchange.head_told = true;
  }
  if (code == CURLE_OK && !exchange.tell_head()) exchange.stopped = true;
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reply.status = static_cast<int>(status);
  long peer_port = 0;
  curl_easy_getinfo(curl, CURLINFO_PRIMARY_PORT, &peer_port);
  const char* url = nullptr;
  curl_easy_getinfo(curl, CURLINFO_EFFECTIVE_URL, &url);
  reply.url = url != nullptr ? url : request.url;
  set(CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
  curl_slist_free_all(list);

  reply.end = exchange.stopped     ? HttpEnd::kStopped
              : exchange.too_large ? HttpEnd::kTooLarge
                                   : end_of(code, peer_port > 0);
  if (reply.end == HttpEnd::kTooLarge)
    reply.error = fmt::format("{} {}: must have at most {} bytes of body and {} of headers", request.method,
                              request.url, request.body_limit, kMostHeaderBytes);
  else if (reply.end == HttpEnd::kStopped)
    reply.error = fmt::format("{} {}: stopped", request.method, request.url);
  else if (reply.end != HttpEnd::kDone)
    reply.error =
        fmt::format("{} {}: {}", request.method, request.url, why[0] != '\0' ? why : curl_easy_strerror(code));
  return std::move(exchange.reply);
}

}  // namespace mettle::net

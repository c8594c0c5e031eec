// A HTTP client: one connection kept alive, bodies in one piece or as they arrive. For servers under test, the hub and
// the load generator. Proxies of the environment are not used for loopback addresses.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mettle {
namespace net {  // the server has a HttpRequest of its own

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

enum class HttpEnd {
  kDone,      // the whole reply came; its status may still be 4xx or 5xx
  kRefused,   // no connection: nobody listens, name unknown, TLS refused
  kTimeout,   // total_seconds or silence_seconds passed
  kCut,       // the connection ended early, or what came is not HTTP
  kTooLarge,  // the body is longer than body_limit
  kStopped,   // on_head or on_body said so, or *stop was set
};
const char* name_of(HttpEnd end);

struct HttpReply {
  HttpEnd end = HttpEnd::kDone;
  std::string error;    // sentence with the URL when end is not kDone
  int status = 0;       // 0: no reply began
  HttpHeaders headers;  // names in lower case, of the last reply after redirects
  std::string body;     // empty when on_body took it
  std::string url;      // after redirects
  bool ok() const { return end == HttpEnd::kDone && status >= 200 && status < 300; }
  std::string_view header(std::string_view name) const;  // name in lower case; "" when absent
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // http:// or https://
  HttpHeaders headers;
  std::string body;  // sent when not empty; the caller sets content-type
  double connect_seconds = 10;
  double total_seconds = 60;   // of the whole exchange; 0: no limit
  double silence_seconds = 0;  // without a byte; 0: no limit; counted in whole seconds
  size_t body_limit = size_t{16} << 20;
  int redirects = 0;                                    // followed at most; credentials stay with the first host
  std::function<bool(const HttpReply& head)> on_head;   // once, when status and headers are known
  std::function<bool(std::string_view piece)> on_body;  // pieces as they arrive, of any status
  const std::atomic<bool>* stop = nullptr;              // looked at at least once a second
};

// Not for use by two threads at once. Never throws for what the network does.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  HttpReply send(const HttpRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace net

using net::HttpClient;
using net::HttpEnd;
using net::HttpHeaders;
using net::HttpReply;
using net::HttpRequest;

}  // namespace mettle

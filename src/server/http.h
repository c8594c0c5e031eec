// HTTP/1.1 server: requests in, answers or event streams out. One coroutine per connection on a few threads; what a
// client sends is limited in bytes and time, and a client that leaves is noticed at once.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mettle {

struct HttpRequest {
  std::string method;  // GET, HEAD, POST, ...
  std::string path;    // without the query, percent-encoded as it came; "*" of OPTIONS: the server itself
  std::string query;
  std::string host;  // as it came, of an absolute target before the field; empty: HTTP/1.0 without one
  std::string authorization;
  std::string content_type;
  std::string content_encoding;
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers;
};

// One request and its answer. All but post() may be called only inside the handler or inside a function given to
// post(): these run one at a time. Functions posted while a write waits for a slow client run after it, which is the
// back-pressure: a producer that hands over what piled up in one posted function never buffers more than that.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void respond(HttpResponse response) = 0;               // the whole answer
  virtual void begin_stream(std::string_view content_type) = 0;  // or: status 200, then write()s, then end()
  virtual void write(std::string_view data) = 0;
  virtual void end() = 0;
  // Ends the connection without finishing the answer, so that the client cannot take it for a whole one.
  virtual void abort() = 0;
  // Called at most once, when the client leaves (or the server stops) before the answer is complete.
  virtual void on_gone(std::function<void()> call) = 0;
  // From any thread; dropped once the answer is complete or the client is gone.
  virtual void post(std::function<void()> call) = 0;
};

// An Error it throws becomes an error answer, anything else a 500 that says nothing about the inside.
using HttpHandler = std::function<void(const std::shared_ptr<Exchange>&)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int threads = 2;
  size_t header_limit = size_t{32} << 10;
  size_t body_limit = size_t{16} << 20;
  int64_t max_connections = 4096;  // more get a 503
  // What takes longer is cut off.
  std::chrono::milliseconds idle_timeout{75'000};   // between requests, and until a header is complete
  std::chrono::milliseconds body_timeout{60'000};   // until a body is complete
  std::chrono::milliseconds write_timeout{60'000};  // without progress while the client does not read
};

class HttpServer {
 public:
  // Binds: kDevice when the port is in use or the address is not this machine's. Nothing is accepted before start().
  HttpServer(HttpOptions options, HttpHandler handler);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const;  // http://HOST:PORT
  uint16_t port() const;
  bool is_loopback() const;  // nobody but this machine can connect
  int64_t connections() const;
  void start();
  // No new connections; the ones that wait for a request are closed, the others after their answer.
  void drain();  // not from a handler
  // Drains, gives open answers `grace` to get out, closes everything and joins the threads. Handlers and posted
  // functions do not run afterwards.
  void stop(std::chrono::milliseconds grace = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one request from bytes, as a connection does. Fails with kInvalidRequest.
HttpRequest parse_http(std::string_view bytes, const HttpOptions& options);

}  // namespace mettle

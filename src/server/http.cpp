// Connections, carried by Asio; requests are read by Beast (http_read.cpp). Nothing else of the program knows Boost.
#include "server/http.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/read.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "server/api_error.h"
#include "server/http_fields.h"
#include "server/http_read.h"

namespace mettle {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = net::ip::tcp;
using boost::system::error_code;
using namespace boost::asio::experimental::awaitable_operators;

using Strand = net::strand<net::io_context::executor_type>;
using Stream = beast::basic_stream<tcp, Strand>;
constexpr auto kAwait = net::as_tuple(net::use_awaitable);
constexpr size_t kReadPiece = size_t{4} << 10;
constexpr size_t kWritePiece = size_t{64} << 10;
constexpr std::chrono::milliseconds kPeerPoll{200};
constexpr std::chrono::milliseconds kLinger{5'000};
constexpr std::chrono::minutes kWarnAgain{1};

std::string header_text(int status, std::string_view content_type, const HttpHeaders& headers) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string text = "HTTP/1.1 " + std::to_string(status) + " ";
  text.append(reason.data(), reason.size());
  text.append("\r\nServer: mettle\r\nDate: ").append(http_date_now()).append("\r\n");
  if (!content_type.empty()) text.append("Content-Type: ").append(content_type).append("\r\n");
  for (const auto& [name, value] : headers) text.append(name).append(": ").append(value).append("\r\n");
  return text;
}

class LiveExchange final : public Exchange, public std::enable_shared_from_this<LiveExchange> {
 public:
  LiveExchange(std::shared_ptr<net::io_context> io, const Strand& strand, HttpRequest request, bool http11,
               bool keep_alive)
      : io_(std::move(io)),
        strand_(strand),
        wake_(strand),
        request_(std::move(request)),
        http11_(http11),
        keep_alive_(keep_alive) {
    wake_.expires_at(net::steady_timer::time_point::max());
  }

  const HttpRequest& request() const override { return request_; }

  void respond(HttpResponse response) override {
    if (started_) return;
    started_ = true;
    out_ += header_text(response.status, response.content_type, response.headers);
    if (response.status != 204) out_ += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
    out_ += connection_field() + "\r\n";
    if (request_.method != "HEAD") out_ += response.body;
    finish();
  }

  void begin_stream(std::string_view content_type) override {
    if (started_) return;
    started_ = true;
    if (!http11_) keep_alive_ = false;
    out_ += header_text(200, content_type, {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
    if (http11_) out_ += "Transfer-Encoding: chunked\r\n";
    out_ += connection_field() + "\r\n";
  }

  void write(std::string_view data) override {
    if (finished_ || data.empty()) return;
    if (!http11_) {
      out_ += data;
      return;
    }
    char size[20];
    snprintf(size, sizeof size, "%zx\r\n", data.size());
    out_.append(size).append(data).append("\r\n");
  }

  void end() override {
    if (finished_) return;
    if (http11_) out_ += "0\r\n\r\n";
    finish();
  }

  void abort() override {
    keep_alive_ = false;
    finish();
  }

  void on_gone(std::function<void()> call) override { on_gone_ = std::move(call); }

  void post(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    posted_.push_back(std::move(call));
    if (posted_.size() == 1) net::post(strand_, [self = shared_from_this()] { self->wake_.cancel(); });
  }

  // On the strand, like everything below.
  void set_keep_alive(bool keep_alive) { keep_alive_ = keep_alive_ && keep_alive; }
  bool keep_alive() const { return keep_alive_; }
  bool started() const { return started_; }

  // Runs handlers so that an exception becomes an answer.
  template <class F>
  void guarded(F&& call) {
    try {
      call();
      return;
    } catch (const Error& e) {
      if (!started_) return respond(error_response(api_error(e)));
      log::error("server: {} {}: {}", request_.method, request_.path, e.message);
    } catch (const std::exception& e) {
      log::error("server: {} {}: {}", request_.method, request_.path, e.what());
      if (!started_) return respond(error_response({500, "internal error", {}, "internal_error"}));
    }
    abort();
  }

  // Moves the answer to the client until it is complete.
  net::awaitable<void> pump(Stream& stream, std::chrono::milliseconds timeout) {
    for (;;) {
      for (auto& call : take_posted()) {
        if (finished_) break;
        guarded(call);
      }
      if (!out_.empty()) {
        const std::string out = std::exchange(out_, {});
        for (size_t at = 0; at < out.size(); at += kWritePiece) {
          stream.expires_after(timeout);
          const auto piece = net::buffer(out.data() + at, std::min(kWritePiece, out.size() - at));
          const auto [ec, n] = co_await net::async_write(stream, piece, kAwait);
          if (ec) {
            failed_ = true;
            co_return;
          }
        }
        stream.expires_never();
        continue;
      }
      if (finished_) co_return;
      if (has_posted()) continue;
      co_await wake_.async_wait(kAwait);
      wake_.expires_at(net::steady_timer::time_point::max());
    }
  }

  // The answer is complete, or the client gone: nothing is called any more.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      posted_.clear();
    }
    const auto gone = std::exchange(on_gone_, nullptr);
    if ((!finished_ || failed_) && gone) gone();
  }
  bool complete() const { return finished_ && !failed_; }

 private:
  std::string connection_field() const { return keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n"; }
  void finish() { finished_ = started_ = true; }
  std::vector<std::function<void()>> take_posted() {
    const std::lock_guard lock(mutex_);
    return std::exchange(posted_, {});
  }
  bool has_posted() {
    const std::lock_guard lock(mutex_);
    return !posted_.empty();
  }

  const std::shared_ptr<net::io_context> io_;  // whoever still holds an exchange may outlive the server
  Strand strand_;
  net::steady_timer wake_;
  HttpRequest request_;
  const bool http11_;
  bool keep_alive_;
  bool started_ = false, finished_ = false, failed_ = false;
  std::string out_;
  std::function<void()> on_gone_;
  std::mutex mutex_;  // of what post() touches
  std::vector<std::function<void()>> posted_;
  bool closed_ = false;
};

// Reads until `buffer` begins with what may be a request. The stream's time goes on over all of it.
net::awaitable<error_code> skip_empty_lines(Stream& stream, beast::flat_buffer& buffer) {
  for (int lines = 0; lines < kEmptyLines;) {
    const auto data = buffer.cdata();
    const auto is_empty = begins_with_empty_line({static_cast<const char*>(data.data()), data.size()});
    if (!is_empty) {
      const auto [ec, n] = co_await stream.async_read_some(buffer.prepare(kReadPiece), kAwait);
      if (ec) co_return ec;
      buffer.commit(n);
    } else if (*is_empty) {
      buffer.consume(kEmptyLine);
      ++lines;
    } else {
      break;
    }
  }
  co_return error_code();
}

// Returns when the client closed its side (a half-close counts: such clients are rare, abandoned requests are not).
net::awaitable<void> watch_peer(Stream& stream) {
  net::steady_timer timer(stream.get_executor());
  for (;;) {
    const auto [ec] = co_await stream.socket().async_wait(tcp::socket::wait_read, kAwait);
    if (ec) co_return;
    pollfd state{stream.socket().native_handle(), POLLRDHUP, 0};
    if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLERR | POLLHUP)) != 0) {
      stream.close();  // ends a write that waits for the client
      co_return;
    }
    // The next request waits in the socket already: readiness says nothing more, so look again from time to time.
    timer.expires_after(kPeerPoll);
    const auto [waited] = co_await timer.async_wait(kAwait);
    if (waited) co_return;
  }
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpOptions given, HttpHandler given_handler)
      : options(std::move(given)), handler(std::move(given_handler)), acceptor(net::make_strand(*io)) {}

  struct Connection {
    explicit Connection(tcp::socket::rebind_executor<Strand>::other socket) : stream(std::move(socket)) {}
    Stream stream;
    bool waiting = true;  // for a request
  };

  net::awaitable<void> accept_loop() {
    net::steady_timer::time_point quiet_until{};
    for (;;) {
      const Strand strand = net::make_strand(*io);
      auto [ec, socket] = co_await acceptor.async_accept(strand, kAwait);
      if (ec == net::error::operation_aborted || !acceptor.is_open()) co_return;
      if (ec) {  // no file descriptor left, or the client is gone again
        // It may go on for as long as clients hold what they have.
        if (const auto now = net::steady_timer::clock_type::now(); now >= quiet_until) {
          log::warn("server: accept: {} (said once a minute)", ec.message());
          quiet_until = now + kWarnAgain;
        }
        net::steady_timer pause(acceptor.get_executor());
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(kAwait);
        continue;
      }
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      auto connection = std::make_shared<Connection>(std::move(socket));
      {
        const std::lock_guard lock(mutex);
        live.insert(connection);
      }
      net::co_spawn(strand, serve(connection), [this, connection](const std::exception_ptr& thrown) {
        if (thrown) log_exception(thrown);
        const std::lock_guard lock(mutex);
        live.erase(connection);
        ended.notify_all();
      });
    }
  }

  static void log_exception(const std::exception_ptr& thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      log::error("server: connection: {}", e.what());
    }
  }

  net::awaitable<void> serve(std::shared_ptr<Connection> connection) {
    Stream& stream = connection->stream;
    beast::flat_buffer buffer(options.header_limit + kWritePiece);
    if (connections() > options.max_connections) {
      // A named object: gcc 12 destroys a braced temporary of a co_await expression twice.
      const ApiError full{503, "too many connections, at most " + std::to_string(options.max_connections), {}, {}};
      co_await refuse(stream, full);
      co_return;
    }
    while (!draining) {
      HttpParser parser;
      limit(parser, options);
      connection->waiting = true;
      stream.expires_after(options.idle_timeout);
      error_code ec = co_await skip_empty_lines(stream, buffer);
      if (!ec) {
        const auto [header_error, header_bytes] = co_await http::async_read_header(stream, buffer, parser, kAwait);
        ec = header_error;
      }
      connection->waiting = false;
      HttpRequest request;
      bool http11 = false, keep_alive = false;
      if (!ec) {
        auto head = take_head(parser);
        if (const auto* failure = std::get_if<ApiError>(&head)) {
          co_await refuse(stream, *failure);
          break;
        }
        request = std::move(std::get<HttpRequest>(head));
        http11 = parser.get().version() >= 11;
        keep_alive = parser.keep_alive();
      }
      if (!ec && waits_for_continue(parser)) {
        static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
        co_await net::async_write(stream, net::buffer(kContinue.data(), kContinue.size()), kAwait);
      }
      if (!ec) {
        stream.expires_after(options.body_timeout);
        const auto [body_error, body_bytes] = co_await http::async_read(stream, buffer, parser, kAwait);
        ec = body_error;
      }
      if (ec) {
        if (const auto failure = read_failure(ec, options)) co_await refuse(stream, *failure);
        break;
      }
      stream.expires_never();
      request.body = std::move(parser.get().body());
      const auto exchange = std::make_shared<LiveExchange>(io, stream.get_executor(), std::move(request), http11,
                                                           keep_alive && !draining);
      exchange->guarded([&] { handler(exchange); });
      co_await (exchange->pump(stream, options.write_timeout) || watch_peer(stream));
      exchange->close();
      if (!exchange->complete() || !exchange->keep_alive()) break;
    }
    error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  // Answers a request that was not read to its end. What the client still sends is read and dropped for a while:
  // closing at once would reset the connection and could take the answer with it.
  net::awaitable<void> refuse(Stream& stream, ApiError error) {
    const HttpResponse response = error_response(error);
    std::string text = header_text(response.status, response.content_type, response.headers);
    text += "Content-Length: " + std::to_string(response.body.size()) + "\r\nConnection: close\r\n\r\n" + response.body;
    stream.expires_after(kLinger);
    const auto [ec, written] = co_await net::async_write(stream, net::buffer(text), kAwait);
    if (ec) co_return;
    error_code ignored;
    stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    std::vector<char> dropped(kWritePiece);
    for (;;) {
      const auto [read_error, n] = co_await stream.async_read_some(net::buffer(dropped), kAwait);
      if (read_error) co_return;
    }
  }

  int64_t connections() {
    const std::lock_guard lock(mutex);
    return static_cast<int64_t>(live.size());
  }

  // Calls f(connection) on each connection's strand.
  template <class F>
  void each_connection(F f) {
    const std::lock_guard lock(mutex);
    for (const auto& connection : live)
      net::post(connection->stream.get_executor(), [connection, f] { f(*connection); });
  }

  void close_acceptor() {
    std::promise<void> closed;
    net::post(acceptor.get_executor(), [&] {
      error_code ignored;
      acceptor.close(ignored);
      closed.set_value();
    });
    closed.get_future().wait();
  }

  HttpOptions options;
  HttpHandler handler;
  std::shared_ptr<net::io_context> io = std::make_shared<net::io_context>();
  tcp::acceptor acceptor;
  std::optional<net::executor_work_guard<net::io_context::executor_type>> work;
  std::vector<std::thread> threads;
  uint16_t port = 0;
  std::atomic<bool> draining{false};
  std::mutex mutex;
  std::condition_variable ended;
  std::set<std::shared_ptr<Connection>> live;
};

HttpServer::HttpServer(HttpOptions options, HttpHandler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {
  const std::string& host = impl_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  const std::string where = (v6 ? "[" + host + "]" : host) + ":" + std::to_string(impl_->options.port);
  error_code ec;
  tcp::resolver resolver(*impl_->io);
  const auto found = resolver.resolve(host, std::to_string(impl_->options.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) fail(Code::kDevice, "server: host " + host + ": " + ec.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  auto& acceptor = impl_->acceptor;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (ec == net::error::address_in_use)
    fail(Code::kDevice, "server: " + where + " is in use by another program; choose another --port, or 0 for any");
  if (!ec) impl_->port = acceptor.local_endpoint(ec).port();
  if (ec) fail(Code::kDevice, "server: cannot bind " + where + ": " + ec.message());
}

HttpServer::~HttpServer() { stop(); }

uint16_t HttpServer::port() const { return impl_->port; }

bool HttpServer::is_loopback() const {
  error_code ec;
  const auto address = impl_->acceptor.local_endpoint(ec).address();
  return !ec && address.is_loopback();
}

std::string HttpServer::url() const {
  const std::string& host = impl_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port());
}

int64_t HttpServer::connections() const { return impl_->connections(); }

void HttpServer::start() {
  error_code ec;
  impl_->acceptor.listen(tcp::acceptor::max_listen_connections, ec);
  if (ec) fail(Code::kDevice, "server: cannot listen at " + url() + ": " + ec.message());
  impl_->work.emplace(impl_->io->get_executor());
  net::co_spawn(impl_->acceptor.get_executor(), impl_->accept_loop(), net::detached);
  for (int i = 0; i < impl_->options.threads; ++i) impl_->threads.emplace_back([this] { impl_->io->run(); });
}

void HttpServer::drain() {
  if (impl_->threads.empty()) return;
  impl_->draining = true;
  impl_->close_acceptor();
  impl_->each_connection([](Impl::Connection& c) {
    if (c.waiting) c.stream.cancel();
  });
}

void HttpServer::stop(std::chrono::milliseconds grace) {
  if (impl_->threads.empty()) return;
  drain();
  {
    std::unique_lock lock(impl_->mutex);
    impl_->ended.wait_for(lock, grace, [&] { return impl_->live.empty(); });
  }
  impl_->each_connection([](Impl::Connection& c) { c.stream.close(); });
  impl_->work.reset();  // run() returns when the last connection has ended
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

}  // namespace mettle

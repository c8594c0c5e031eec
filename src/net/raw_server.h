// A server for tests that says exactly the bytes it is told to, each connection on a thread of its own. Only tests
// include it.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace mettle {

class RawPeer {
 public:
  explicit RawPeer(int fd) : fd_(fd) {}

  // Head and body of the next request; false when the client has closed.
  bool read_request() {
    head.clear();
    body.clear();
    size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
      if (!receive()) return false;
    head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    size_t length = 0;
    for (const char* name : {"Content-Length: ", "content-length: "})
      if (const size_t at = head.find(name); at != std::string::npos)
        length = std::strtoul(head.c_str() + at + 16, nullptr, 10);
    while (buffer_.size() < length)
      if (!receive()) return false;
    body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return true;
  }
  bool asks(std::string_view start) const { return head.substr(0, start.size()) == start; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool answer(int status, std::string_view type, std::string_view text) {
    return send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: " + std::string(type) +
                "\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + std::string(text));
  }
  // The head of an answer that lasts until the connection ends.
  bool begin(std::string_view type) {
    return send("HTTP/1.1 200 OK\r\nContent-Type: " + std::string(type) + "\r\nConnection: close\r\n\r\n");
  }
  void wait_for_close() {  // by the client, or when the server is destroyed
    while (receive()) buffer_.clear();
  }
  void reset() {  // RST instead of FIN
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }

  std::string head, body;

 private:
  bool receive() {
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  std::string buffer_;
};

class RawServer {
 public:
  using Serve = std::function<void(RawPeer& peer)>;  // of one connection, which is closed when it returns

  explicit RawServer(Serve serve) : serve_(std::move(serve)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 1024) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~RawServer() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    ::close(listener_);
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  uint16_t port() const { return port_; }
  std::string url(std::string_view path = "") const {
    return "http://127.0.0.1:" + std::to_string(port_) + std::string(path);
  }
  int connections() const { return connections_; }

 private:
  void accept_all() {
    for (;;) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      ++connections_;
      const std::lock_guard lock(mutex_);
      open_.push_back(fd);
      threads_.emplace_back([this, fd] {
        RawPeer peer(fd);
        serve_(peer);
        const std::lock_guard lock(mutex_);
        std::erase(open_, fd);
        ::close(fd);
      });
    }
  }

  Serve serve_;
  int listener_;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::atomic<int> connections_{0};
  std::thread acceptor_;
};

}  // namespace mettle

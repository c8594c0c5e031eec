// A blocking HTTP client for tests: raw bytes out, one answer in. Only tests include it.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace mettle {

class HttpClient {
 public:
  struct Answer {
    int status = 0;  // 0: the connection ended before a whole answer
    std::string headers, body;
  };

  explicit HttpClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void reset() {  // RST instead of FIN
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // The next bytes; empty at the end of the connection.
  std::string receive() {
    char buffer[65536];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : std::string();
  }
  // Everything until the other side closes.
  std::string receive_all() {
    std::string all = std::exchange(rest_, {});
    for (std::string part; !(part = receive()).empty();) all += part;
    return all;
  }
  std::string receive_until(std::string_view mark) {
    size_t at = 0;
    while ((at = rest_.find(mark)) == std::string::npos) {
      const std::string part = receive();
      if (part.empty()) return {};
      rest_ += part;
    }
    std::string text = rest_.substr(0, at + mark.size());
    rest_.erase(0, at + mark.size());
    return text;
  }

  Answer read_answer(bool head = false) {
    Answer answer;
    answer.headers = receive_until("\r\n\r\n");
    if (answer.headers.size() < 12) return {};
    const int status = std::atoi(answer.headers.c_str() + 9);
    if (head || status == 204) {
      answer.status = status;
      return answer;
    }
    if (answer.headers.find("Transfer-Encoding: chunked") != std::string::npos) {
      for (;;) {
        const std::string size_line = receive_until("\r\n");
        if (size_line.empty()) return answer;
        const size_t size = std::strtoul(size_line.c_str(), nullptr, 16);
        if (!receive_exactly(size, answer.body) || receive_until("\r\n") != "\r\n") return answer;
        if (size == 0) break;
      }
    } else if (const size_t at = answer.headers.find("Content-Length: "); at != std::string::npos) {
      if (!receive_exactly(std::strtoul(answer.headers.c_str() + at + 16, nullptr, 10), answer.body)) return answer;
    } else {
      answer.body = receive_all();
    }
    answer.status = status;
    return answer;
  }
  Answer get(std::string_view path, std::string_view headers = {}) {
    send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(headers) + "\r\n");
    return read_answer();
  }
  Answer post(std::string_view path, std::string_view body, std::string_view headers = {}) {
    send(post_text(path, body, headers));
    return read_answer();
  }
  static std::string post_text(std::string_view path, std::string_view body, std::string_view headers = {}) {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n" + std::string(headers) + "\r\n" + std::string(body);
  }

 private:
  bool receive_exactly(size_t size, std::string& out) {
    while (rest_.size() < size) {
      const std::string part = receive();
      if (part.empty()) return false;
      rest_ += part;
    }
    out += rest_.substr(0, size);
    rest_.erase(0, size);
    return true;
  }

  int fd_;
  bool connected_ = false;
  std::string rest_;
};

}  // namespace mettle

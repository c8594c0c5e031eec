// Requests to a hub: redirects followed by hand, so that the token never leaves the hub's own host and port; failures
// that may pass are tried again with a growing pause, or the one that the server asks for.
#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "net/http_client.h"

namespace mettle::hub {

struct SessionOptions {
  std::string endpoint, token;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> on_note;
};

// What passes by itself is worth waiting for: 408, 429, 5xx, cuts, time-outs, refused connections.
bool is_passing(const HttpReply& reply);

// Counts failures in a row, and pauses.
class Patience {
 public:
  explicit Patience(const SessionOptions& options) : options_(options) {}
  void progress() { failures_ = 0; }  // bytes came: start counting anew
  // Pauses after a failure of `what`; fails with kDevice when there were too many in a row or the server asks for more
  // than ten minutes. Returns early when stopped.
  void wait(const std::string& what, const HttpReply& reply);

 private:
  const SessionOptions& options_;
  int failures_ = 0;
};

class Session {
 public:
  explicit Session(const SessionOptions& options) : options_(options) {}

  struct Get {
    std::string url;
    HttpHeaders headers;
    size_t body_limit = size_t{1} << 20;
    std::function<bool(const HttpReply& head)> on_head;   // of a reply that is no redirect
    std::function<bool(std::string_view piece)> on_body;  // of such a reply with a 2xx status
  };
  // One attempt with all its redirects. The reply's url is the last one asked. Fails with kBadModel for redirects that
  // nobody may follow: too many, from https to http, to something that is no URL.
  HttpReply get(const Get& request);
  // As get(), again and again while the failure may pass; fails as Patience does, and with kBadModel for 4xx.
  HttpReply get_patiently(const Get& request, const std::string& what);

 private:
  const SessionOptions& options_;
  HttpClient client_;
};

// A sentence for a reply that is an error: status, what the hub says, what to do.
std::string why_refused(const SessionOptions& options, const HttpReply& reply, const std::string& what);

}  // namespace mettle::hub

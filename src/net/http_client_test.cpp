#include "net/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/raw_server.h"

namespace mettle {
namespace {

using testing::HasSubstr;

constexpr const char* kOk = "HTTP/1.1 200 OK\r\n";

HttpReply get(const std::string& url, const std::function<void(HttpRequest&)>& change = {}) {
  HttpRequest request;
  request.url = url;
  if (change != nullptr) change(request);
  HttpClient client;
  return client.send(request);
}

RawServer::Serve says(std::string bytes) {
  return [bytes = std::move(bytes)](RawPeer& peer) {
    if (peer.read_request()) peer.send(bytes);
  };
}

TEST(HttpClient, BodyAndHeadersOfAPlainReply) {
  RawServer server(says(std::string(kOk) + "X-Name:  a value \r\nContent-Length: 5\r\n\r\nhello"));
  const HttpReply r = get(server.url("/a"));
  EXPECT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.body, "hello");
  EXPECT_EQ(r.header("x-name"), "a value");
  EXPECT_EQ(r.header("x-other"), "");
  EXPECT_EQ(r.url, server.url("/a"));
}

TEST(HttpClient, MethodBodyAndHeadersArriveAsGiven) {
  RawServer server([](RawPeer& peer) {
    while (peer.read_request()) peer.answer(200, "text/plain", peer.head + peer.body);
  });
  HttpReply r = get(server.url("/p?q=1"), [](HttpRequest& q) {
    q.method = "POST";
    q.headers = {{"Content-Type", "application/json"}, {"Authorization", "Bearer k"}};
    q.body = std::string("{\"a\":\0}", 7);
  });
  EXPECT_THAT(r.body, HasSubstr("POST /p?q=1 HTTP/1.1\r\n"));
  EXPECT_THAT(r.body, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(r.body, HasSubstr("Authorization: Bearer k\r\n"));
  EXPECT_THAT(r.body, testing::Not(HasSubstr("Expect")));
  EXPECT_EQ(r.body.substr(r.body.size() - 7), std::string("{\"a\":\0}", 7));
  r = get(server.url(), [](HttpRequest& q) { q.method = "DELETE"; });
  EXPECT_THAT(r.body, HasSubstr("DELETE / HTTP/1.1\r\n"));
}

TEST(HttpClient, HeadHasNoBodyToWaitFor) {
  RawServer server(says(std::string(kOk) + "Content-Length: 1000\r\n\r\n"));
  const HttpReply r = get(server.url(), [](HttpRequest& q) { q.method = "HEAD"; });
  EXPECT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(r.header("content-length"), "1000");
}

TEST(HttpClient, OneConnectionForManyRequests) {
  RawServer server([](RawPeer& peer) {
    while (peer.read_request()) peer.answer(200, "text/plain", "x");
  });
  HttpClient client;
  HttpRequest request;
  request.url = server.url();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(client.send(request).ok());
  EXPECT_EQ(server.connections(), 1);
  HttpClient moved = std::move(client);
  EXPECT_TRUE(moved.send(request).ok());
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, AKeptConnectionThatTheServerClosedIsOpenedAgain) {
  RawServer server([](RawPeer& peer) {
    if (peer.read_request()) peer.answer(200, "text/plain", "x");
  });
  HttpClient client;
  HttpRequest request;
  request.url = server.url();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.send(request).ok());
}

TEST(HttpClient, ChunkedPiecesArriveOneByOne) {
  // Each piece is sent when the one before it has arrived, so that none waits for the next.
  std::atomic<int> arrived{0};
  RawServer server([&](RawPeer& peer) {
    if (!peer.read_request()) return;
    peer.send(std::string(kOk) + "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 3; ++i) {
      peer.send("3;ext=1\r\nab" + std::to_string(i) + "\r\n");
      while (arrived <= i) std::this_thread::yield();
    }
    peer.send("0\r\nTrailer: x\r\n\r\n");
  });
  std::vector<std::string> pieces;
  int heads = 0;
  const HttpReply r = get(server.url(), [&](HttpRequest& q) {
    q.on_head = [&](const HttpReply& head) {
      ++heads;
      return head.status == 200 && head.header("content-type") == "text/event-stream";
    };
    q.on_body = [&](std::string_view piece) {
      pieces.emplace_back(piece);
      ++arrived;
      return true;
    };
  });
  EXPECT_TRUE(r.ok()) << r.error;
  EXPECT_EQ(pieces, (std::vector<std::string>{"ab0", "ab1", "ab2"}));
  EXPECT_EQ(heads, 1);
  EXPECT_EQ(r.body, "");
}

TEST(HttpClient, StatusesOfFailureAreRepliesWithBodies) {
  RawServer server([](RawPeer& peer) {
    if (peer.read_request()) peer.answer(503, "text/plain", "busy");
  });
  const HttpReply r = get(server.url());
  EXPECT_EQ(r.end, HttpEnd::kDone);
  EXPECT_FALSE(r.ok());
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.body, "busy");
}

TEST(HttpClient, BodiesThatEndEarlyAreCut) {
  for (const char* body : {"Content-Length: 10\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
                           "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "Content-Len"}) {
    RawServer server(says(std::string(kOk) + body));
    const HttpReply r = get(server.url());
    EXPECT_EQ(r.end, HttpEnd::kCut) << body;
    EXPECT_THAT(r.error, HasSubstr("GET " + server.url())) << body;
  }
  RawServer reset([](RawPeer& peer) {
    if (!peer.read_request()) return;
    peer.send(std::string(kOk) + "Content-Length: 10\r\n\r\nabc");
    peer.reset();
  });
  EXPECT_EQ(get(reset.url()).end, HttpEnd::kCut);
  RawServer silent([](RawPeer& peer) { peer.read_request(); });
  EXPECT_EQ(get(silent.url()).end, HttpEnd::kCut);
}

TEST(HttpClient, WhatIsNotHttpIsCutAndNotRefused) {
  for (const char* bytes : {"SSH-2.0-OpenSSH_9.2\r\n", "\x15\x03\x01", "220 mail\r\n"}) {
    RawServer server(says(bytes));
    const HttpReply r = get(server.url());
    EXPECT_EQ(r.end, HttpEnd::kCut) << bytes << r.error;
    EXPECT_EQ(r.status, 0);
  }
}

TEST(HttpClient, NobodyThereIsRefused) {
  std::string url;
  {
    RawServer server([](RawPeer&) {});
    url = server.url();
  }
  EXPECT_EQ(get(url).end, HttpEnd::kRefused);
  EXPECT_EQ(get("http://").end, HttpEnd::kRefused);
  EXPECT_EQ(get("ftp://127.0.0.1/").end, HttpEnd::kRefused);
  EXPECT_EQ(get("file:///etc/hostname").end, HttpEnd::kRefused);
  EXPECT_EQ(get("").end, HttpEnd::kRefused);
}

TEST(HttpClient, ABodyOverTheLimitIsTooLarge) {
  RawServer server(says(std::string(kOk) + "Content-Length: 5\r\n\r\nhello"));
  const auto limited = [&](size_t limit) { return get(server.url(), [&](HttpRequest& q) { q.body_limit = limit; }); };
  EXPECT_TRUE(limited(5).ok());
  const HttpReply r = limited(4);
  EXPECT_EQ(r.end, HttpEnd::kTooLarge);
  EXPECT_THAT(r.error, HasSubstr("at most 4 bytes"));
  EXPECT_LE(r.body.size(), 4u);
  size_t taken = 0;
  const HttpReply streamed = get(server.url(), [&](HttpRequest& q) {
    q.body_limit = 4;
    q.on_body = [&](std::string_view piece) {
      taken += piece.size();
      return true;
    };
  });
  EXPECT_EQ(streamed.end, HttpEnd::kTooLarge);
  EXPECT_LE(taken, 4u);
}

TEST(HttpClient, HeadersWithoutAnEndAreNotKept) {
  RawServer server([](RawPeer& peer) {
    if (!peer.read_request()) return;
    peer.send(kOk);
    while (peer.send("X-Filler: " + std::string(1000, 'x') + "\r\n")) {
    }
  });
  const HttpReply r = get(server.url());
  EXPECT_EQ(r.end, HttpEnd::kTooLarge) << r.error;
  size_t kept = 0;
  for (const auto& [name, value] : r.headers) kept += name.size() + value.size();
  EXPECT_LE(kept, size_t{256} << 10);
}

TEST(HttpClient, ATimeLimitOfTheWholeExchange) {
  RawServer server([](RawPeer& peer) {
    if (peer.read_request()) peer.wait_for_close();
  });
  const HttpReply r = get(server.url(), [](HttpRequest& q) { q.total_seconds = 0.2; });
  EXPECT_EQ(r.end, HttpEnd::kTimeout);
  EXPECT_THAT(r.error, HasSubstr(server.url()));
  EXPECT_THAT(r.error, HasSubstr("timed out"));
}

TEST(HttpClient, SilenceInTheMiddleOfABody) {
  RawServer server([](RawPeer& peer) {
    if (!peer.read_request()) return;
    peer.send(std::string(kOk) + "Content-Length: 10\r\n\r\nabc");
    peer.wait_for_close();
  });
  const HttpReply r = get(server.url(), [](HttpRequest& q) { q.silence_seconds = 1; });
  EXPECT_EQ(r.end, HttpEnd::kTimeout);
  EXPECT_EQ(r.body, "abc");
  EXPECT_THAT(r.error, HasSubstr("too slow"));  // that limit, and not one of the whole exchange
}

TEST(HttpClient, FunctionsAndTheFlagStopIt) {
  RawServer server([](RawPeer& peer) {
    if (!peer.read_request()) return;
    peer.send(std::string(kOk) + "Content-Length: 10\r\n\r\nabc");
    peer.wait_for_close();
  });
  EXPECT_EQ(get(server.url(), [](HttpRequest& q) { q.on_head = [](const HttpReply&) { return false; }; }).end,
            HttpEnd::kStopped);
  EXPECT_EQ(get(server.url(), [](HttpRequest& q) { q.on_body = [](std::string_view) { return false; }; }).end,
            HttpEnd::kStopped);
  std::atomic<bool> stop{false};
  const HttpReply r = get(server.url(), [&](HttpRequest& q) {
    q.stop = &stop;
    q.on_body = [&](std::string_view) {
      stop = true;
      return true;
    };
  });
  EXPECT_EQ(r.end, HttpEnd::kStopped);
}

TEST(HttpClient, RedirectsAreFollowedAsFarAsAllowed) {
  RawServer server([](RawPeer& peer) {
    while (peer.read_request()) {
      if (peer.asks("GET /end"))
        peer.answer(200, "text/plain", "end");
      else
        peer.send("HTTP/1.1 302 Found\r\nLocation: /" + std::string(peer.asks("GET /one") ? "end" : "one") +
                  "\r\nContent-Length: 4\r\n\r\nmove");
    }
  });
  const auto follow = [&](int most) { return get(server.url("/start"), [&](HttpRequest& q) { q.redirects = most; }); };
  HttpReply r = follow(2);
  EXPECT_EQ(r.body, "end");
  EXPECT_EQ(r.url, server.url("/end"));
  EXPECT_EQ(follow(1).end, HttpEnd::kCut);
  r = follow(0);
  EXPECT_EQ(r.status, 302);
  EXPECT_EQ(r.header("location"), "/one");
}

TEST(HttpClient, CredentialsStayWithTheFirstHost) {
  RawServer other([](RawPeer& peer) {
    while (peer.read_request()) peer.answer(200, "text/plain", peer.head);
  });
  RawServer first(says("HTTP/1.1 302 Found\r\nLocation: " + other.url("/x") + "\r\nContent-Length: 0\r\n\r\n"));
  const HttpReply r = get(first.url(), [](HttpRequest& q) {
    q.redirects = 3;
    q.headers = {{"Authorization", "Bearer secret"}};
  });
  EXPECT_THAT(r.body, HasSubstr("GET /x"));
  EXPECT_THAT(r.body, testing::Not(HasSubstr("secret")));
}

TEST(HttpClient, ARedirectToAFileIsNotFollowed) {
  RawServer server(says("HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\nContent-Length: 0\r\n\r\n"));
  const HttpReply r = get(server.url(), [](HttpRequest& q) { q.redirects = 3; });
  EXPECT_NE(r.end, HttpEnd::kDone);
  EXPECT_EQ(r.body, "");
}

}  // namespace
}  // namespace mettle

#include "server/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <regex>
#include <thread>

#include "base/error.h"
#include "server/http_client.h"

namespace mettle {
namespace {

// Waits for things that other threads do.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  void wait(int count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

void echo(const std::shared_ptr<Exchange>& e) {
  e->respond(
      {.body = e->request().method + " " + e->request().path + " " + e->request().body, .content_type = "text/plain"});
}

// Date of RFC 9110 6.6.1, once and in its form.
bool has_date(const std::string& headers) {
  static const std::regex form(
      "\r\nDate: (Sun|Mon|Tue|Wed|Thu|Fri|Sat), [0-9]{2} (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [0-9]{4} "
      "[0-9]{2}:[0-9]{2}:[0-9]{2} GMT\r\n");
  std::smatch found;
  return std::regex_search(headers, found, form) && found.suffix().str().find("\nDate:") == std::string::npos;
}

TEST(Http, AnswersKeepsAliveAndPipelines) {
  HttpServer server({}, echo);
  server.start();
  HttpClient client(server.port());
  EXPECT_EQ(client.get("/a?b=c").body, "GET /a ");
  EXPECT_EQ(client.post("/p", "hello").body, "POST /p hello");
  client.send(HttpClient::post_text("/1", "x") + HttpClient::post_text("/2", "y"));
  EXPECT_EQ(client.read_answer().body, "POST /1 x");
  EXPECT_EQ(client.read_answer().body, "POST /2 y");
  client.send("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST /c abcde");
  client.send("HEAD /h HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto head = client.read_answer(true);
  EXPECT_NE(head.headers.find("Content-Length: 8"), std::string::npos) << head.headers;
  EXPECT_TRUE(has_date(head.headers)) << head.headers;
  EXPECT_EQ(client.get("/after").body, "GET /after ");
  client.send("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "GET /old ");
  EXPECT_EQ(client.receive(), "") << "HTTP/1.0 ends the connection";
}

TEST(Http, TrailersAreNoFieldsOfTheRequest) {
  HttpServer server({}, [](const std::shared_ptr<Exchange>& e) {
    const HttpRequest& r = e->request();
    e->respond(
        {.body = r.authorization + "|" + r.content_type + "|" + r.content_encoding + "|" + r.host + "|" + r.body});
  });
  server.start();
  HttpClient client(server.port());
  const std::string request =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;a=\"b;c\"\r\nok\r\n0\r\nAuthorization: Bearer "
      "stolen\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nHost: y\r\nConnection: close\r\n\r\n";
  client.send(request);
  EXPECT_EQ(client.read_answer().body, "|||x|ok");
  EXPECT_EQ(client.get("/").body, "|||x|") << "closed by a trailer";
  const HttpRequest parsed = parse_http(request, {});
  EXPECT_EQ(parsed.authorization + parsed.content_type + parsed.content_encoding + parsed.host + parsed.body, "xok");
}

TEST(Http, ContinuesABodyThatWasAnnounced) {
  HttpServer server({}, echo);
  server.start();
  HttpClient client(server.port());
  client.send("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.read_answer().body, "POST /e ok");
  client.send("POST /f HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.read_answer().body, "POST /f ok");
  HttpClient old(server.port());
  old.send("POST /o HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok");
  EXPECT_TRUE(old.receive_all().starts_with("HTTP/1.1 200 OK\r\n")) << "HTTP/1.0 knows no such answer";
}

TEST(Http, RefusesWhatIsTooLargeAndStillDeliversTheAnswer) {
  HttpServer server({.header_limit = 1024, .body_limit = 1000}, echo);
  server.start();
  EXPECT_EQ(HttpClient(server.port()).post("/", std::string(1000, 'x')).status, 200);
  HttpClient large(server.port());
  const auto answer = large.post("/", std::string(50'000'000, 'x'));
  EXPECT_EQ(answer.status, 413);
  EXPECT_NE(answer.body.find("body: at most 1000 bytes"), std::string::npos) << answer.body;
  HttpClient chunked(server.port());
  chunked.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x'));
  EXPECT_EQ(chunked.read_answer().status, 413);
  EXPECT_EQ(HttpClient(server.port()).get("/", "X: " + std::string(2000, 'x') + "\r\n").status, 431);
  HttpClient expecting(server.port());
  expecting.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(expecting.read_answer().status, 413);
  EXPECT_EQ(HttpClient(server.port()).get("/").status, 200);
}

TEST(Http, RefusesWhatIsNoHttp) {
  HttpServer server({}, echo);
  server.start();
  for (const char* bytes : {"\x16\x03\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\r\r\r\r\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nGET / HTTP/1.1\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"}) {
    HttpClient client(server.port());
    client.send(bytes);
    EXPECT_EQ(client.read_answer().status, 400) << bytes;
  }
  EXPECT_EQ(HttpClient(server.port()).get("/").status, 200);
}

// RFC 9112 2.2: clients of old sent an empty line behind a body; some do so today.
TEST(Http, EmptyLinesBeforeARequestAreSkipped) {
  HttpServer server({}, echo);
  server.start();
  HttpClient client(server.port());
  client.send("\r\nPOST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na\r\n");
  EXPECT_EQ(client.read_answer().body, "POST /1 a");
  EXPECT_EQ(client.get("/2").body, "GET /2 ") << "behind the body of the one before";
  client.send("\r");
  client.send("\n\r");
  client.send("\nGET /3 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "GET /3 ") << "in any pieces";
  const std::string request = "GET /4 HTTP/1.1\r\nHost: x\r\n\r\n";
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += "\r\n";
  client.send(lines + request + lines + request);
  EXPECT_EQ(client.read_answer().body, "GET /4 ");
  EXPECT_EQ(client.read_answer().body, "GET /4 ") << "as many before each request";
  EXPECT_EQ(parse_http(lines + request, {}).path, "/4");
  for (const std::string& bytes : {"\r\n" + lines + request, "\n" + request, "\r\r\n" + request, " \r\n" + request}) {
    HttpClient other(server.port());
    other.send(bytes);
    EXPECT_EQ(other.read_answer().status, 400) << bytes;
    EXPECT_THROW(parse_http(bytes, {}), Error) << bytes;
  }
  HttpClient leaves(server.port());
  leaves.send("\r\n\r");
  leaves.half_close();
  EXPECT_EQ(leaves.receive_all(), "") << "no request, no answer";
}

TEST(Http, AsksForOneHost) {
  HttpServer server({}, [](const std::shared_ptr<Exchange>& e) { e->respond({.body = e->request().host}); });
  server.start();
  EXPECT_TRUE(server.is_loopback());
  for (const char* fields : {"", "Host: a\r\nHost: a\r\n", "Host: a\r\nhost: b\r\n", "Host: a, b\r\n", "Host: a b\r\n",
                             "Host: http://a/\r\n", "Host: a@b\r\n"}) {
    HttpClient client(server.port());
    client.send("POST / HTTP/1.1\r\nContent-Length: 3\r\n" + std::string(fields) + "\r\nabc");
    const auto answer = client.read_answer();
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_NE(answer.body.find("Host: must "), std::string::npos) << answer.body;
    EXPECT_TRUE(has_date(answer.headers)) << answer.headers;
    EXPECT_EQ(client.receive(), "") << "what follows is not taken for a request";
    EXPECT_THROW(parse_http("GET / HTTP/1.1\r\n" + std::string(fields) + "\r\n", {}), Error) << fields;
  }
  for (const auto& [bytes, host] :
       {std::pair("GET / HTTP/1.1\r\nHost:\r\n\r\n", ""), std::pair("GET / HTTP/1.0\r\n\r\n", ""),
        std::pair("GET / HTTP/1.1\r\nHOST: [::1]:8000 \r\n\r\n", "[::1]:8000")}) {
    HttpClient client(server.port());
    client.send(bytes);
    const auto answer = client.read_answer();
    EXPECT_EQ(answer.status, 200) << bytes << answer.body;
    EXPECT_EQ(answer.body, host);
  }
  EXPECT_FALSE(HttpServer({.host = "0.0.0.0"}, echo).is_loopback());
}

TEST(Http, AnAbsoluteTargetNamesPathAndHost) {
  HttpServer server({}, [](const std::shared_ptr<Exchange>& e) {
    const HttpRequest& r = e->request();
    e->respond({.body = r.host + " " + r.path + " " + r.query + " " + r.body});
  });
  server.start();
  HttpClient client(server.port());
  client.send("GET http://127.0.0.1:8000/v1/models?a=b HTTP/1.1\r\nHost: other\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "127.0.0.1:8000 /v1/models a=b ");
  client.send("POST http://x HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(client.read_answer().body, "x /  ok");
  EXPECT_EQ(client.get("/after").body, "x /after  ") << "the connection goes on";
  for (const auto& [line, status] :
       {std::pair("GET https://x/", 421), std::pair("GET http://user@x/", 400), std::pair("POST http:///a", 400),
        std::pair("GET x", 400), std::pair("GET *", 400), std::pair("CONNECT x:443", 501)}) {
    HttpClient other(server.port());
    other.send(std::string(line) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    ASSERT_EQ(other.read_answer().status, status) << line;
    EXPECT_EQ(other.receive(), "") << "what follows is not taken for a request";
    EXPECT_THROW(parse_http(std::string(line) + " HTTP/1.1\r\nHost: x\r\n\r\n", {}), Error) << line;
  }
  for (const char* fields : {"", "Host: a\r\nHost: a\r\n", "Host: a@b\r\n"}) {
    HttpClient other(server.port());
    other.send("GET http://x/ HTTP/1.1\r\n" + std::string(fields) + "\r\n");
    ASSERT_EQ(other.read_answer().status, 400) << fields;
  }
}

TEST(Http, SlowRequestsEnd) {
  HttpServer server({.idle_timeout = std::chrono::milliseconds(50), .body_timeout = std::chrono::milliseconds(50)},
                    echo);
  server.start();
  HttpClient idle(server.port());
  EXPECT_EQ(idle.receive(), "") << "an idle connection is closed without an answer";
  HttpClient empty(server.port());
  empty.send("\r\n");
  EXPECT_EQ(empty.receive(), "") << "an empty line is none yet";
  HttpClient header(server.port());
  header.send("GET / HTTP/1.1\r\nHos");
  EXPECT_EQ(header.receive(), "");
  HttpClient body(server.port());
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(body.receive(), "");
}

TEST(Http, HandlersThatThrowBecomeAnswers) {
  HttpServer server({}, [](const std::shared_ptr<Exchange>& e) {
    if (e->request().path == "/error") fail(Code::kInvalidRequest, "n: too large, got 17", "n");
    if (e->request().path == "/busy") fail(Code::kBusy, "full");
    if (e->request().path == "/later") return e->post([] { fail(Code::kInternal, "secret inside"); });
    throw std::runtime_error("secret inside");
  });
  server.start();
  HttpClient client(server.port());
  const auto error = client.get("/error");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.body,
            R"({"error":{"message":"n: too large, got 17","type":"invalid_request_error","param":"n","code":null}})");
  const auto busy = client.get("/busy");
  EXPECT_EQ(busy.status, 429);
  EXPECT_NE(busy.headers.find("Retry-After: 1"), std::string::npos);
  for (const char* path : {"/other", "/later"}) {
    const auto answer = client.get(path);
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(answer.body.find("secret"), std::string::npos) << answer.body;
  }
}

// An exchange whose handler left; a test answers it.
struct Parked {
  Flag here, gone;
  std::shared_ptr<Exchange> exchange;
  HttpHandler handler() {
    return [this](const std::shared_ptr<Exchange>& e) {
      if (e->request().path != "/park") return echo(e);
      exchange = e;
      e->on_gone([this] { gone.set(); });
      here.set();
    };
  }
};

TEST(Http, StreamsFromAnotherThread) {
  Parked parked;
  HttpServer server({}, parked.handler());
  server.start();
  HttpClient client(server.port());
  client.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
  parked.here.wait();
  const auto e = parked.exchange;
  e->post([e] { e->begin_stream("text/event-stream"); });
  for (int i = 0; i < 1000; ++i) e->post([e, i] { e->write("data: " + std::to_string(i) + "\n\n"); });
  e->post([e] { e->end(); });
  const auto answer = client.read_answer();
  EXPECT_EQ(answer.status, 200);
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  EXPECT_EQ(answer.body, expected);
  EXPECT_EQ(client.get("/next").body, "GET /next ");
}

TEST(Http, AnAbortedStreamIsNotAWholeAnswer) {
  Parked parked;
  HttpServer server({}, parked.handler());
  server.start();
  HttpClient client(server.port());
  client.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
  parked.here.wait();
  const auto e = parked.exchange;
  e->post([e] {
    e->begin_stream("text/event-stream");
    e->write("half");
    e->abort();
  });
  EXPECT_EQ(client.read_answer().status, 0);
}

TEST(Http, NoticesClientsThatLeave) {
  enum class How { kClose, kReset, kHalfClose, kCloseWithMoreWaiting };
  for (const How how : {How::kClose, How::kReset, How::kHalfClose, How::kCloseWithMoreWaiting}) {
    Parked parked;
    HttpServer server({}, parked.handler());
    server.start();
    HttpClient client(server.port());
    client.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
    parked.here.wait();
    if (how == How::kCloseWithMoreWaiting) client.send("GET /never HTTP/1.1\r\nHost: x\r\n\r\n");
    if (how == How::kReset)
      client.reset();
    else if (how == How::kHalfClose)
      client.half_close();
    else
      client.close();
    parked.gone.wait();
    parked.exchange->post([] { ADD_FAILURE() << "posted functions do not run once the client is gone"; });
    HttpClient other(server.port());
    EXPECT_EQ(other.get("/x").status, 200);
  }
}

TEST(Http, AClientThatDoesNotReadIsCutOffAndBuffersNothing) {
  Parked parked;
  HttpServer server({.write_timeout = std::chrono::milliseconds(100)}, parked.handler());
  server.start();
  HttpClient client(server.port());
  client.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
  parked.here.wait();
  const auto e = parked.exchange;
  std::atomic<int> written{0};
  const std::string megabyte(1 << 20, 'x');
  e->post([e] { e->begin_stream("text/event-stream"); });
  // Each function posts the next one, as an engine does that hands over what piled up.
  std::function<void()> more = [&] {
    e->write(megabyte);
    ++written;
    e->post(more);
  };
  e->post(more);
  parked.gone.wait();
  EXPECT_LT(written.load(), 64) << "the writer waited for the client";
  server.stop();
}

TEST(Http, StopEndsWhatIsOpenAndDrainLetsAnswersFinish) {
  Parked parked;
  HttpServer server({}, parked.handler());
  server.start();
  HttpClient idle(server.port());
  EXPECT_EQ(idle.get("/x").status, 200);
  HttpClient client(server.port());
  client.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
  parked.here.wait();
  server.drain();
  EXPECT_EQ(idle.receive(), "");
  const auto e = parked.exchange;
  e->post([e] { echo(e); });
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_EQ(client.receive(), "") << "closed after its answer";
  EXPECT_FALSE(HttpClient(server.port()).connected());

  Parked second;
  HttpServer stopped({}, second.handler());
  stopped.start();
  HttpClient open(stopped.port());
  open.send("GET /park HTTP/1.1\r\nHost: x\r\n\r\n");
  second.here.wait();
  stopped.stop();
  second.gone.wait();
  EXPECT_EQ(open.receive(), "");
}

TEST(Http, PortsInUseAndForeignAddressesAreRefused) {
  HttpServer first({}, echo);
  first.start();
  try {
    HttpServer second({.port = first.port()}, echo);
    second.start();
    FAIL() << "two servers on one port";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kDevice);
    EXPECT_NE(e.message.find("127.0.0.1:" + std::to_string(first.port()) + " is in use"), std::string::npos)
        << e.message;
  }
  EXPECT_THROW(HttpServer({.host = "192.0.2.1"}, echo), Error);
  try {
    HttpServer({.host = "2001:db8::1", .port = 4711}, echo);
    FAIL() << "an address of documents";
  } catch (const Error& e) {
    EXPECT_NE(e.message.find("[2001:db8::1]:4711"), std::string::npos) << e.message;
  }
  EXPECT_THROW(HttpServer({.host = "no such host"}, echo), Error);
}

TEST(Http, MoreConnectionsThanAllowedGetAnAnswer) {
  HttpServer server({.max_connections = 2}, echo);
  server.start();
  HttpClient a(server.port()), b(server.port());
  EXPECT_EQ(a.get("/").status, 200);
  EXPECT_EQ(b.get("/").status, 200);
  HttpClient c(server.port());
  EXPECT_EQ(c.read_answer().status, 503);
}

TEST(Http, ManyConnectionsAtOnce) {
  HttpServer server({}, echo);
  server.start();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        HttpClient client(server.port());
        const std::string body(static_cast<size_t>(i * 997), 'a');
        if (client.post("/" + std::to_string(t), body).body == "POST /" + std::to_string(t) + " " + body) ++good;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good.load(), 400);
}

}  // namespace
}  // namespace mettle

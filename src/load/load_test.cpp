// Runs against servers of raw bytes.
#include "load/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "load/arrivals.h"
#include "net/raw_server.h"

namespace mettle {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

std::string chunk(const std::string& content, const char* finish = nullptr) {
  const Json choice = {{"index", 0}, {"delta", {{"content", content}}}, {"finish_reason", nullptr}};
  Json json = {{"choices", {choice}}};
  if (finish != nullptr) json["choices"][0]["finish_reason"] = finish;
  return "data: " + json.dump() + "\n\n";
}
constexpr const char* kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

// Lists one model; every other request is answered by `serve`, which returns whether the connection goes on.
RawServer::Serve serving(std::function<bool(RawPeer&)> serve) {
  return [serve = std::move(serve)](RawPeer& peer) {
    while (peer.read_request()) {
      if (peer.asks("GET /v1/models")) {
        if (!peer.answer(200, "application/json", R"({"object":"list","data":[{"id":"m1"},{"id":"m2"}]})")) return;
      } else if (!serve(peer)) {
        return;
      }
    }
  };
}
RawServer::Serve streaming(std::string events) {
  return serving([events = std::move(events)](RawPeer& peer) {
    peer.begin("text/event-stream; charset=utf-8");
    peer.send(events);
    return false;
  });
}

LoadOptions options_of(const RawServer& server) {
  LoadOptions o;
  o.base_url = server.url("/v1/");
  return o;
}
LoadRequest one(const RawServer& server, const std::function<void(LoadOptions&)>& change = {}) {
  LoadOptions o = options_of(server);
  if (change != nullptr) change(o);
  return run_load(o, {{.text = "hi", .output_tokens = 2}}).requests.at(0);
}

TEST(Load, AStreamIsTimedAndCounted) {
  RawServer server(streaming(": hello\n\n" + chunk("") + chunk("a") + chunk("b") + chunk("", "length") + kUsage));
  const LoadRequest r = one(server);
  EXPECT_EQ(r.error, "");
  EXPECT_EQ(r.text, "ab");
  EXPECT_EQ(r.finish_reason, "length");
  EXPECT_EQ(r.input_tokens, 4);
  EXPECT_EQ(r.output_tokens, 2);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.itl_ms.size(), 1u);
  EXPECT_GT(r.ttft_ms, 0);
  EXPECT_GE(r.e2e_ms, r.ttft_ms + r.itl_ms[0]);
}

TEST(Load, TheFirstTokenIsTheFirstPieceWithText) {
  // The text waits until the client has had time to take the role's piece for it.
  RawServer server(serving([](RawPeer& peer) {
    peer.begin("text/event-stream");
    peer.send(chunk(""));
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    peer.send(chunk("a") + chunk("", "stop") + kUsage);
    return false;
  }));
  EXPECT_GE(one(server).ttft_ms, 50);
}

TEST(Load, ReasoningIsTextToo) {
  RawServer server(streaming(R"(data: {"choices":[{"delta":{"reasoning_content":"r"}}]})"
                             "\n\n"
                             R"(data: {"choices":[{"delta":{"reasoning":"s"}}]})"
                             "\n\n" +
                             chunk("c", "stop") + kUsage));
  const LoadRequest r = one(server);
  EXPECT_EQ(r.text, "rsc");
  EXPECT_EQ(r.itl_ms.size(), 2u);
}

TEST(Load, CompletionsAndTheRequestAsItIsSent) {
  std::string head, body;
  RawServer server(serving([&](RawPeer& peer) {
    head = peer.head;
    body = peer.body;
    peer.begin("text/event-stream");
    peer.send("data: {\"choices\":[{\"text\":\"t\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n");
    return false;
  }));
  const LoadRequest r = one(server, [](LoadOptions& o) {
    o.chat = false;
    o.api_key = "sk-1";
    o.temperature = 0.5;
  });
  EXPECT_EQ(r.text, "t");
  EXPECT_EQ(r.output_tokens, 0);
  EXPECT_THAT(head, HasSubstr("POST /v1/completions HTTP/1.1"));
  EXPECT_THAT(head, HasSubstr("Authorization: Bearer sk-1"));
  EXPECT_EQ(Json::parse(body), Json::parse(R"({"model":"m1","prompt":"hi","max_tokens":2,"temperature":0.5,
      "stream":true,"stream_options":{"include_usage":true},"ignore_eos":true})"));
  one(server, [](LoadOptions& o) {
    o.model = "named";
    o.ignore_eos = false;
  });
  EXPECT_EQ(Json::parse(body), Json::parse(R"({"model":"named","messages":[{"role":"user","content":"hi"}],
      "max_tokens":2,"temperature":0,"stream":true,"stream_options":{"include_usage":true}})"));
}

TEST(Load, WholeAnswersWithoutAStream) {
  RawServer server(serving([](RawPeer& peer) {
    return peer.answer(200, "application/json",
                       R"({"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}],)"
                       R"("usage":{"prompt_tokens":9,"completion_tokens":3}})");
  }));
  for (const bool stream : {false, true}) {  // some servers do not stream although asked to
    const LoadRequest r = one(server, [&](LoadOptions& o) { o.stream = stream; });
    EXPECT_EQ(r.error, "");
    EXPECT_EQ(r.text, "whole");
    EXPECT_EQ(r.output_tokens, 3);
    EXPECT_EQ(r.ttft_ms, r.e2e_ms);
  }
}

TEST(Load, EventsWithoutEmptyLinesBetweenThem) {
  RawServer server(
      streaming("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n"
                "data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n"
                "data: [DONE]\n"));
  EXPECT_EQ(one(server).text, "ab");
}

TEST(Load, WhatGoesWrongHasAKindAndASentence) {
  const auto kind = [](RawServer::Serve serve, const char* says, double seconds = 60) {
    RawServer server(std::move(serve));
    const LoadRequest r = one(server, [&](LoadOptions& o) {
      o.model = "m";
      o.request_seconds = seconds;
    });
    EXPECT_THAT(r.error, HasSubstr(says));
    return r.error_kind;
  };
  const auto answering = [](int status, std::string body) {
    return serving([=](RawPeer& peer) { return peer.answer(status, "application/json", body); });
  };
  EXPECT_EQ(kind(answering(500, R"({"error":{"message":"CUDA error"}})"), "HTTP 500: CUDA error"), "http_500");
  EXPECT_EQ(kind(answering(429, "slow\ndown"), "HTTP 429: slow down"), "http_429");
  EXPECT_EQ(kind(answering(503,
                           "\x1b[2J \xC2\x9B"
                           "2J \xC2\xA9"),
                 "HTTP 503:  [2J   2J \xC2\xA9"),
            "http_503");
  EXPECT_EQ(kind(answering(204, ""), "HTTP 204"), "http_204");
  EXPECT_EQ(kind(answering(200, "<html>"), "must be JSON, got \"<html>\""), "bad_json");
  EXPECT_EQ(kind(answering(200, "{}"), "choices"), "bad_json");
  EXPECT_EQ(kind(answering(200, "[]"), "choices"), "bad_json");
  EXPECT_EQ(kind(streaming(chunk("a")), "after 1 pieces"), "cut");
  EXPECT_EQ(kind(streaming(""), "after 0 pieces"), "cut");
  EXPECT_EQ(kind(streaming("data: {\"choi\n\n"), "got \"{\"choi\""), "bad_json");
  EXPECT_EQ(kind(streaming(chunk("a") + "data: {\"error\":{\"message\":\"died\",\"code\":500}}\n\n"), "died"),
            "stream_error");
  EXPECT_EQ(kind(streaming("data: {\"object\":\"error\",\"message\":\"old\"}\n\n"), "old"), "stream_error");
  EXPECT_EQ(kind(streaming("data: {\"error\":\"text\"}\n\n"), "text"), "stream_error");
  EXPECT_EQ(kind(serving([](RawPeer& peer) {
                   peer.begin("text/event-stream");
                   peer.wait_for_close();
                   return false;
                 }),
                 "127.0.0.1", 0.3),
            "timeout");
  EXPECT_EQ(kind(serving([](RawPeer&) { return false; }), "127.0.0.1"), "cut");
}

TEST(Load, HostileUsageAndChunksOfTheWrongShape) {
  RawServer server(
      streaming("data: {\"choices\":[1,null]}\n\ndata: {\"choices\":{}}\n\ndata: 5\n\ndata: null\n\n"
                "data: {\"choices\":[{\"delta\":{\"content\":5,\"reasoning_content\":[]}}]}\n\n"
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":-4,\"completion_tokens\":1e300}}\n\n"
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":\"x\",\"completion_tokens\":99999999999}}\n\n" +
                chunk("a", "stop") + "data: [DONE]\n\n"));
  const LoadRequest r = one(server);
  EXPECT_EQ(r.error, "");
  EXPECT_EQ(r.text, "a");
  EXPECT_EQ(r.input_tokens, 0);
  EXPECT_EQ(r.output_tokens, 0);
}

TEST(Load, AServerThatIsNotThereIsAnErrorOfTheRun) {
  std::string url;
  {
    RawServer server([](RawPeer&) {});
    url = server.url();
  }
  LoadOptions o;
  o.base_url = url;
  o.model = "m";
  const auto code_of = [&] {
    try {
      run_load(o, {{.text = "x"}});
    } catch (const Error& e) {
      return e.code;
    }
    return Code::kInternal;
  };
  EXPECT_EQ(code_of(), Code::kDevice);
  RawServer no_models([](RawPeer& peer) {
    while (peer.read_request()) peer.answer(404, "text/plain", "no");
  });
  o.base_url = no_models.url();
  o.model = "";
  EXPECT_EQ(code_of(), Code::kDevice);
  for (const char* bad : {"", "http://", "ftp://x", "a b"}) {
    o.base_url = bad;
    EXPECT_EQ(code_of(), Code::kInvalidRequest) << bad;
  }
}

TEST(Load, OptionsThatCannotBe) {
  const auto refuses = [](const std::function<void(LoadOptions&)>& change, const char* says) {
    LoadOptions o;
    o.base_url = "http://127.0.0.1:1";
    change(o);
    try {
      run_load(o, {{.text = "x"}});
      ADD_FAILURE() << says;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kInvalidRequest) << e.message;
      EXPECT_THAT(e.message, HasSubstr(says));
    }
  };
  refuses([](LoadOptions& o) { o.concurrency = 0; }, "concurrency: must be in 1..1024, got 0");
  refuses([](LoadOptions& o) { o.concurrency = 1025; }, "1025");
  refuses([](LoadOptions& o) { o.arrival = Arrival::kPoisson, o.rate = 0; }, "rate");
  refuses([](LoadOptions& o) { o.arrival = Arrival::kPoisson, o.rate = NAN; }, "rate");
  refuses([](LoadOptions& o) { o.arrival = Arrival::kGamma, o.burstiness = -1; }, "burstiness");
  refuses([](LoadOptions& o) { o.api_key = "a\r\nX: y"; }, "api_key");
  refuses([](LoadOptions& o) { o.request_seconds = 0; }, "request_seconds");
}

TEST(Load, NoPromptsNoRequests) {
  RawServer server(streaming(""));
  const LoadRun run = run_load(options_of(server), {});
  EXPECT_TRUE(run.requests.empty());
  EXPECT_EQ(run.model, "m1");
}

// Counts requests at the server, and lets none end before `wanted` are there together.
class Crowd {
 public:
  explicit Crowd(int wanted) : wanted_(wanted) {}
  void enter() {
    std::unique_lock lock(mutex_);
    most_ = std::max(most_, ++now_);
    if (most_ >= wanted_) change_.notify_all();
    change_.wait_for(lock, std::chrono::seconds(60), [&] { return most_ >= wanted_; });
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --now_;
  }
  int most() const { return most_; }

 private:
  const int wanted_;
  std::mutex mutex_;
  std::condition_variable change_;
  int now_ = 0, most_ = 0;
};

TEST(Load, AClosedLoopHasExactlySoManyInFlight) {
  Crowd crowd(5);
  RawServer server(serving([&](RawPeer& peer) {
    crowd.enter();
    crowd.leave();
    return peer.answer(200, "text/event-stream", chunk("a", "stop") + kUsage);
  }));
  LoadOptions o = options_of(server);
  o.concurrency = 5;
  size_t told = 0;
  o.on_progress = [&](size_t done, size_t total) {
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(total, 23u);
  };
  const LoadRun run = run_load(o, std::vector<LoadPrompt>(23, {.text = "x"}));
  EXPECT_EQ(figures_of(run).completed, 23);
  EXPECT_EQ(crowd.most(), 5);
  EXPECT_EQ(told, 23u);
  EXPECT_EQ(run.held_back, 0u);
}

TEST(Load, HundredsInFlight) {
  Crowd crowd(300);
  RawServer server(serving([&](RawPeer& peer) {
    crowd.enter();
    return peer.answer(200, "text/event-stream", chunk("a", "stop") + kUsage);
  }));
  LoadOptions o = options_of(server);
  o.concurrency = 300;
  EXPECT_EQ(figures_of(run_load(o, std::vector<LoadPrompt>(300, {.text = "x"}))).completed, 300);
}

TEST(Load, AnOpenLoopSendsWhatIsDueWhateverTheServerDoes) {
  Crowd crowd(8);  // no answer before all are there: a closed loop of fewer would never end
  RawServer server(serving([&](RawPeer& peer) {
    crowd.enter();
    return peer.answer(200, "text/event-stream", chunk("a", "stop") + kUsage);
  }));
  LoadOptions o = options_of(server);
  o.arrival = Arrival::kPoisson;
  o.rate = 100;
  o.concurrency = 8;
  const LoadRun run = run_load(o, std::vector<LoadPrompt>(8, {.text = "x"}));
  EXPECT_EQ(figures_of(run).completed, 8);
  EXPECT_EQ(run.held_back, 0u);
  const std::vector<double> due = arrival_times(8, o.arrival, o.rate, 1, o.seed);
  for (size_t i = 0; i < due.size(); ++i) EXPECT_GE(run.requests[i].start_s, due[i]) << i;
}

TEST(Load, ClientsThatAreAllTakenHoldRequestsBack) {
  RawServer server(serving([](RawPeer& peer) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return peer.answer(200, "text/event-stream", chunk("a", "stop") + kUsage);
  }));
  LoadOptions o = options_of(server);
  o.arrival = Arrival::kPoisson;
  o.rate = 10000;
  const LoadRun run = run_load(o, std::vector<LoadPrompt>(5, {.text = "x"}));
  EXPECT_EQ(figures_of(run).completed, 5);
  EXPECT_EQ(run.held_back, 4u);
}

TEST(Load, TurnsCarryTheAnswersBeforeThem) {
  std::mutex mutex;
  std::vector<Json> bodies;
  RawServer server(serving([&](RawPeer& peer) {
    const std::lock_guard lock(mutex);
    bodies.push_back(Json::parse(peer.body));
    const std::string last = bodies.back()["messages"].back()["content"];
    return peer.answer(200, "text/event-stream",
                       R"(data: {"choices":[{"delta":{"reasoning_content":"hm"}}]})"
                       "\n\n" +
                           chunk("re " + last, "stop") + kUsage);
  }));
  LoadOptions o = options_of(server);
  o.concurrency = 4;
  const std::vector<LoadPrompt> prompts = {{.text = "a1", .conversation = 9},
                                           {.text = "b1", .conversation = 3},
                                           {.text = "a2", .conversation = 9},
                                           {.text = "single"},
                                           {.text = "a3", .conversation = 9}};
  const LoadRun run = run_load(o, prompts);
  EXPECT_EQ(run.requests[4].text, "hmre a3");
  const auto last =
      std::find_if(bodies.begin(), bodies.end(), [](const Json& b) { return b["messages"].back()["content"] == "a3"; });
  ASSERT_NE(last, bodies.end());
  EXPECT_EQ((*last)["messages"], Json::parse(R"([{"role":"user","content":"a1"},{"role":"assistant","content":"re a1"},
      {"role":"user","content":"a2"},{"role":"assistant","content":"re a2"},{"role":"user","content":"a3"}])"));
}

TEST(Load, ATurnAfterAFailedOneIsNotSent) {
  std::atomic<int> asked{0};
  RawServer server(serving([&](RawPeer& peer) {
    ++asked;
    return peer.answer(500, "text/plain", "no");
  }));
  const LoadRun run =
      run_load(options_of(server), {{.text = "a", .conversation = 0}, {.text = "b", .conversation = 0}});
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(run.requests[1].error_kind, "earlier_turn");
  EXPECT_THAT(run.requests[1].error, HasSubstr("HTTP 500"));
}

TEST(Load, StopEndsWhatRunsAndSendsNothingMore) {
  std::atomic<bool> stop{false};
  std::atomic<int> asked{0};
  RawServer server(serving([&](RawPeer& peer) {
    ++asked;
    peer.begin("text/event-stream");
    peer.send(chunk("a"));
    stop = true;
    peer.wait_for_close();
    return false;
  }));
  LoadOptions o = options_of(server);
  o.stop = &stop;
  const LoadRun run = run_load(o, std::vector<LoadPrompt>(4, {.text = "x"}));
  EXPECT_EQ(asked, 1);
  for (const LoadRequest& r : run.requests) EXPECT_EQ(r.error_kind, "stopped");
}

}  // namespace
}  // namespace mettle

#include "load/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "load/arrivals.h"
#include "load/sse.h"
#include "net/raw_server.h"

namespace mettle {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// --- server-sent events

std::vector<std::string> events_of(const std::vector<std::string_view>& pieces) {
  std::vector<std::string> out;
  SseParser parser;
  const auto take = [&](std::string_view data) { out.emplace_back(data); };
  for (const std::string_view piece : pieces) EXPECT_TRUE(parser.push(piece, take));
  parser.finish(take);
  return out;
}

const std::string kStream =
    ": keep-alive\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata:no space\r\n\r\ndata:  two spaces\rdata\r\rdatum: "
    "no\ndata: [DONE]\n\n\n: end\ndata: last";

TEST(Sse, EveryPlaceToSplitGivesTheSameEvents) {
  const std::vector<std::string> whole = {"{\"a\":1}", "no space", " two spaces\n", "[DONE]", "last"};
  EXPECT_EQ(events_of({kStream}), whole);
  for (size_t i = 0; i <= kStream.size(); ++i)
    for (size_t j = i; j <= kStream.size(); ++j) {
      const std::string_view text = kStream;
      ASSERT_EQ(events_of({text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole) << i << " " << j;
    }
}

TEST(Sse, NothingAndNothingButComments) {
  EXPECT_TRUE(events_of({}).empty());
  EXPECT_TRUE(events_of({"", "\n\n\n", ": a\n\n", "retry: 5\n\n"}).empty());
  EXPECT_THAT(events_of({"data:\n\n"}), ElementsAre(""));
}

TEST(Sse, ALineWithoutEndIsNotKept) {
  SseParser parser;
  const std::string piece(size_t{1} << 20, 'x');
  int taken = 0, given = 0;
  while (taken < 10 && parser.push(taken == 0 ? "data: " + piece : piece, [&](std::string_view) { ++given; })) ++taken;
  EXPECT_EQ(taken, 3);
  EXPECT_FALSE(parser.push("\n\n", [&](std::string_view) { ++given; }));
  EXPECT_EQ(given, 0);
}

TEST(Sse, AnEventOfLinesWithoutEndIsNotKept) {
  SseParser parser;
  const std::string line = "data: " + std::string(size_t{1} << 20, 'x') + "\n";
  int taken = 0;
  while (taken < 10 && parser.push(line, [](std::string_view) {})) ++taken;
  EXPECT_EQ(taken, 3);
}

// --- arrivals

TEST(Arrivals, MeanAndVariationOfTheGaps) {
  const auto gaps_of = [](Arrival arrival, double burstiness) {
    const std::vector<double> times = arrival_times(20001, arrival, 50, burstiness, 7);
    EXPECT_EQ(times.front(), 0);
    std::vector<double> gaps;
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    return quantiles_of(std::move(gaps));
  };
  // Exact for this seed; the expectation beside it: mean 0.02, variation 1/sqrt(burstiness).
  const Quantiles poisson = gaps_of(Arrival::kPoisson, 1);
  EXPECT_NEAR(poisson.mean, 0.02, 0.0004);
  EXPECT_NEAR(poisson.std / poisson.mean, 1, 0.02);
  EXPECT_NEAR(poisson.median, 0.02 * std::log(2.0), 0.0005);
  const Quantiles bursts = gaps_of(Arrival::kGamma, 0.25);
  EXPECT_NEAR(bursts.mean, 0.02, 0.001);
  EXPECT_NEAR(bursts.std / bursts.mean, 2, 0.05);
  const Quantiles even = gaps_of(Arrival::kGamma, 16);
  EXPECT_NEAR(even.mean, 0.02, 0.0002);
  EXPECT_NEAR(even.std / even.mean, 0.25, 0.005);
}

TEST(Arrivals, TheSeedDecides) {
  const auto times = arrival_times(100, Arrival::kGamma, 3, 0.5, 11);
  EXPECT_EQ(times, arrival_times(100, Arrival::kGamma, 3, 0.5, 11));
  EXPECT_NE(times, arrival_times(100, Arrival::kGamma, 3, 0.5, 12));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_TRUE(arrival_times(0, Arrival::kPoisson, 1, 1, 0).empty());
  EXPECT_THAT(arrival_times(3, Arrival::kClosed, 1, 1, 0), ElementsAre(0, 0, 0));
}

// --- figures

LoadRequest went_well(double start, double ttft, double e2e, std::vector<double> itl, int in, int out) {
  LoadRequest r;
  r.start_s = start;
  r.ttft_ms = ttft;
  r.e2e_ms = e2e;
  r.itl_ms = std::move(itl);
  r.input_tokens = in;
  r.output_tokens = out;
  r.text = "x";
  return r;
}

LoadRun three_requests() {
  LoadRun run;
  run.seconds = 2;
  run.requests = {went_well(0.0, 100, 500, {200, 200}, 10, 3), went_well(0.25, 300, 700, {100, 300}, 20, 5),
                  went_well(1.0, 200, 200, {}, 30, 1), LoadRequest{}};
  run.requests[3].error = "HTTP 500";
  run.requests[3].input_tokens = 1000;
  return run;
}

TEST(Figures, AgreeWithNumbersWorkedOutByHand) {
  const LoadFigures f = figures_of(three_requests());
  EXPECT_EQ(f.completed, 3);
  EXPECT_EQ(f.failed, 1);
  EXPECT_EQ(f.total_input, 60);
  EXPECT_EQ(f.total_output, 9);
  EXPECT_DOUBLE_EQ(f.request_throughput, 1.5);
  EXPECT_DOUBLE_EQ(f.input_throughput, 30);
  EXPECT_DOUBLE_EQ(f.output_throughput, 4.5);
  EXPECT_DOUBLE_EQ(f.total_throughput, 34.5);
  EXPECT_DOUBLE_EQ(f.mean_concurrency, 0.7);  // (0.5 + 0.7 + 0.2) s of requests in 2 s
  EXPECT_DOUBLE_EQ(f.ttft_ms.mean, 200);
  EXPECT_DOUBLE_EQ(f.ttft_ms.median, 200);
  EXPECT_DOUBLE_EQ(f.ttft_ms.p90, 280);
  EXPECT_DOUBLE_EQ(f.ttft_ms.p99, 298);
  EXPECT_DOUBLE_EQ(f.ttft_ms.std, std::sqrt(20000.0 / 3));
  EXPECT_DOUBLE_EQ(f.tpot_ms.mean, 150);  // 400/2 and 400/4; one token has none
  EXPECT_DOUBLE_EQ(f.itl_ms.mean, 200);
  EXPECT_DOUBLE_EQ(f.itl_ms.max, 300);
  EXPECT_DOUBLE_EQ(f.e2e_ms.median, 500);
  EXPECT_EQ(f.peak_concurrency, 2);
  EXPECT_DOUBLE_EQ(f.peak_output_throughput, 6);  // from 0.1 to before 1.1 s: all but the last piece
  EXPECT_EQ(f.without_usage, 0);
}

TEST(Figures, NothingAndNothingThatWentWell) {
  EXPECT_EQ(figures_of(LoadRun{}).completed, 0);
  LoadRun run = three_requests();
  for (LoadRequest& r : run.requests) r.error = "x";
  const LoadFigures f = figures_of(run);
  EXPECT_EQ(f.failed, 4);
  EXPECT_EQ(f.output_throughput, 0);
  EXPECT_EQ(f.ttft_ms.p99, 0);
  EXPECT_EQ(f.peak_concurrency, 0);
}

TEST(Figures, WithoutUsagePiecesAreCounted) {
  LoadRun run = three_requests();
  run.requests[0].output_tokens = 0;
  const LoadFigures f = figures_of(run);
  EXPECT_EQ(f.without_usage, 1);
  EXPECT_EQ(f.total_output, 9);
}

TEST(Figures, GoodputCountsRequestsThatKeepEveryGoal) {
  const LoadRun run = three_requests();
  EXPECT_DOUBLE_EQ(goodput_of(run, {}), 1.5);
  EXPECT_DOUBLE_EQ(goodput_of(run, {.ttft_ms = 200}), 1);
  EXPECT_DOUBLE_EQ(goodput_of(run, {.ttft_ms = 200, .tpot_ms = 150}), 0.5);  // the one token keeps any pace
  EXPECT_DOUBLE_EQ(goodput_of(run, {.e2e_ms = 199}), 0);
  EXPECT_FALSE(Goals{}.any());
}

TEST(Figures, ConfidenceOfAMean) {
  EXPECT_EQ(confidence95({}), 0);
  EXPECT_EQ(confidence95({5}), 0);
  EXPECT_NEAR(confidence95({1, 3}), 12.706, 1e-9);                       // std 1.414, over sqrt(2), times t(1)
  EXPECT_NEAR(confidence95({1, 2, 3, 4, 5}), 2.776 * 0.70710678, 1e-6);  // std 1.5811 over sqrt(5)
  EXPECT_EQ(confidence95({2, 2, 2}), 0);
  EXPECT_NEAR(confidence95(std::vector<double>(1000, 1.0)), 0, 1e-12);
}

TEST(Figures, AClientAtItsLimitIsNamed) {
  LoadRun run;
  run.client_cores = 2;
  EXPECT_EQ(client_limit(run), "");
  run.client_cpu = 1.7;
  EXPECT_THAT(client_limit(run), HasSubstr("1.70 of its 2 cores"));
  run.client_cpu = 0;
  run.client_lag_ms = 21;
  EXPECT_THAT(client_limit(run), HasSubstr("21.0 ms late"));
  EXPECT_EQ(client_limit(run, {.lag_ms = 21}), "");
  run.client_lag_ms = 0;
  run.late_ms = 50;
  EXPECT_THAT(client_limit(run), HasSubstr("50.0 ms after it was due"));
}

// --- runs against servers of raw bytes

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

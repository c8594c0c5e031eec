// The routes of the server: OpenAI-compatible generation, models, tokens, health, metrics, plan.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/text_model.h"

namespace mettle {

struct ApiOptions {
  std::string served_name;               // empty: the model's name
  std::string api_key;                   // empty: none asked for. Health needs no key
  bool local_hosts = false;              // only requests whose Host no website can have; not asked of health
  std::function<int64_t()> connections;  // for /metrics; may be empty
};

// Thrown for answers with a status of their own (401, 403, 404, 405, 415, 503); caught in Api::handle().
struct ApiRefusal {
  ApiError error;
  HttpHeaders headers;
};

class Api {
 public:
  // All must outlive this.
  Api(ApiOptions options, Engine& engine, const TextModel& model);

  // Answers every request, also those of no route; thread-safe.
  void handle(const std::shared_ptr<Exchange>& exchange);
  // From now on: no new generations, readiness is red.
  void drain() { draining_ = true; }

 private:
  struct Route;
  struct Call {
    std::shared_ptr<Exchange> exchange;
    const HttpRequest& request;
    std::string_view route = "none";  // for /metrics
  };
  static const Route* routes();  // ends with an empty one
  void dispatch(Call& call);
  bool authorized(const HttpRequest& request) const;
  void check_host(const HttpRequest& request) const;
  void check_accepting() const;
  void check_model(const std::string& name) const;
  void note_ignored(const std::vector<std::string>& fields);
  RequestContext context() const;
  nlohmann::ordered_json model_json() const;

  void answer(Call& call, HttpResponse response);

  void chat(Call& call);
  void complete_text(Call& call);
  void models(Call& call);
  void model(Call& call);
  void tokenize(Call& call);
  void detokenize(Call& call);
  void live(Call& call);
  void ready(Call& call);
  void metrics(Call& call);
  void plan(Call& call);

  ApiOptions options_;
  Engine& engine_;
  const TextModel& model_;
  const int64_t started_;  // Unix seconds
  std::atomic<bool> draining_{false};
  std::atomic<bool> told_ignored_{false};
  std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();  // the engine may tell of ends after this
};

}  // namespace mettle

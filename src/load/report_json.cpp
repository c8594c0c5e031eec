#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "load/report.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

// Two names for one value: what the one tool calls it and what the other does.
void put_times(Json& json, const char* name, const char* other, const Quantiles& q) {
  for (const char* as : {name, other}) {
    if (as == nullptr) continue;
    json[fmt::format("mean_{}_ms", as)] = q.mean;
    json[fmt::format("median_{}_ms", as)] = q.median;
    json[fmt::format("std_{}_ms", as)] = q.std;
    json[fmt::format("p90_{}_ms", as)] = q.p90;
    json[fmt::format("p95_{}_ms", as)] = q.p95;
    json[fmt::format("p99_{}_ms", as)] = q.p99;
  }
}

Json confidence(const std::vector<LoadRun>& repeats) {
  std::vector<LoadFigures> figures;
  for (const LoadRun& run : repeats) figures.push_back(figures_of(run));
  Json json;
  const auto put = [&](const char* name, auto&& value) {
    std::vector<double> values;
    for (const LoadFigures& f : figures) values.push_back(value(f));
    json[name] = {{"half_width", confidence95(values)}, {"values", values}};
  };
  put("request_throughput", [](const LoadFigures& f) { return f.request_throughput; });
  put("output_throughput", [](const LoadFigures& f) { return f.output_throughput; });
  put("mean_ttft_ms", [](const LoadFigures& f) { return f.ttft_ms.mean; });
  put("mean_tpot_ms", [](const LoadFigures& f) { return f.tpot_ms.mean; });
  put("mean_itl_ms", [](const LoadFigures& f) { return f.itl_ms.mean; });
  put("mean_e2e_latency_ms", [](const LoadFigures& f) { return f.e2e_ms.mean; });
  return json;
}

void put_details(Json& json, const LoadRun& run) {
  Json inputs = Json::array(), outputs = Json::array(), ttfts = Json::array(), itls = Json::array(),
       texts = Json::array(), errors = Json::array(), starts = Json::array();
  for (const LoadRequest& r : run.requests) {
    inputs.push_back(r.input_tokens);
    outputs.push_back(r.output_tokens);
    ttfts.push_back(r.ttft_ms / 1e3);
    Json itl = Json::array();
    for (const double ms : r.itl_ms) itl.push_back(ms / 1e3);
    itls.push_back(std::move(itl));
    texts.push_back(r.text);
    errors.push_back(r.error);
    starts.push_back(r.start_s);
  }
  json["input_lens"] = std::move(inputs);
  json["output_lens"] = std::move(outputs);
  json["ttfts"] = std::move(ttfts);
  json["itls"] = std::move(itls);
  json["start_times"] = std::move(starts);
  json["generated_texts"] = std::move(texts);
  json["errors"] = std::move(errors);
}

Json level_json(const LoadReport& report, const LoadLevel& level, bool details) {
  const LoadRun run = together(level.repeats);
  const LoadFigures f = figures_of(run);
  Json json = {{"date", report.date},
               {"backend", report.backend},
               {"endpoint_type", report.backend == "chat" ? "openai-chat" : "openai"},
               {"base_url", report.url},
               {"model_id", report.model},
               {"tokenizer_id", report.tokenizer.empty() ? Json(nullptr) : Json(report.tokenizer)},
               {"dataset_name", report.dataset},
               {"num_prompts", run.requests.size()},
               {"seed", report.seed}};
  // JSON has no infinity; the word is what both tools write.
  json["request_rate"] = level.rate > 0 ? Json(level.rate) : Json("inf");
  json["burstiness"] = level.burstiness;
  json["max_concurrency"] = level.concurrency;
  json["duration"] = f.duration_s;
  json["completed"] = f.completed;
  json["failed"] = f.failed;
  json["total_input_tokens"] = f.total_input;
  json["total_output_tokens"] = f.total_output;
  if (level.check.output_compared > 0) json["total_output_tokens_retokenized"] = level.check.output_retokenized;
  json["request_throughput"] = f.request_throughput;
  json["request_goodput"] = report.goals.any() ? Json(goodput_of(run, report.goals)) : Json(nullptr);
  json["input_throughput"] = f.input_throughput;
  json["output_throughput"] = f.output_throughput;
  json["total_throughput"] = f.total_throughput;
  json["total_token_throughput"] = f.total_throughput;
  json["max_output_tokens_per_s"] = f.peak_output_throughput;
  json["max_concurrent_requests"] = f.peak_concurrency;
  json["concurrency"] = f.mean_concurrency;
  put_times(json, "ttft", nullptr, f.ttft_ms);
  put_times(json, "tpot", nullptr, f.tpot_ms);
  put_times(json, "itl", nullptr, f.itl_ms);
  json["max_itl_ms"] = f.itl_ms.max;
  put_times(json, "e2el", "e2e_latency", f.e2e_ms);
  json["requests_without_usage"] = f.without_usage;
  const TokenCheck& k = level.check;
  json["token_check"] = {{"input_compared", k.input_compared},
                         {"input_differ", k.input_differ},
                         {"output_compared", k.output_compared},
                         {"output_differ", k.output_differ},
                         {"output_over_asked", k.output_over_asked}};
  json["client"] = {{"cpu_cores_used", run.client_cpu},
                    {"cpu_cores", run.client_cores},
                    {"lag_p99_ms", run.client_lag_ms},
                    {"late_p99_ms", run.late_ms},
                    {"held_back", run.held_back}};
  json["repeats"] = level.repeats.size();
  if (level.repeats.size() > 1) json["confidence95"] = confidence(level.repeats);
  Json kinds = Json::array();
  for (const ErrorKind& e : report_errors({.levels = {level}}))
    kinds.push_back({{"kind", e.kind}, {"count", e.count}, {"first", e.first}});
  json["error_kinds"] = std::move(kinds);
  if (details) put_details(json, run);
  return json;
}

}  // namespace

std::string report_json(const LoadReport& report, bool details) {
  std::string out;
  for (const LoadLevel& level : report.levels)
    out += level_json(report, level, details).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return out;
}

}  // namespace mettle

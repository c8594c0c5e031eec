#include "sweep/result.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mettle::sweep {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::array<std::string_view, 3> kOutcomes = {"works", "failed", "skipped"};

// One list of the fields for both directions.
template <class Point, class Visit>
void visit_point(Point& p, Visit&& visit) {
  visit("concurrency", p.concurrency);
  visit("completed", p.completed);
  visit("failed", p.failed);
  visit("seconds", p.seconds);
  visit("request_throughput", p.request_throughput);
  visit("output_throughput", p.output_throughput);
  visit("median_ttft_ms", p.ttft_p50_ms);
  visit("p99_ttft_ms", p.ttft_p99_ms);
  visit("median_tpot_ms", p.tpot_p50_ms);
  visit("p99_tpot_ms", p.tpot_p99_ms);
  visit("median_e2e_latency_ms", p.e2e_p50_ms);
  visit("p99_e2e_latency_ms", p.e2e_p99_ms);
  visit("power_w", p.power_w);
  visit("power_limit_w", p.power_limit_w);
  visit("sm_mhz", p.sm_mhz);
  visit("gpu_busy_percent", p.busy_percent);
}

template <class Result, class Visit>
void visit_result(Result& r, Visit&& visit) {
  visit("name", r.name);
  visit("stage", r.stage);
  visit("cause", r.cause);
  visit("sentence", r.sentence);
  visit("confidence", r.confidence);
  visit("phase", r.phase);
  visit("engine", r.engine);
  visit("evidence", r.evidence);
  visit("remedy", r.remedy);
  visit("notes", r.notes);
  visit("leftovers", r.leftovers);
  visit("end", r.end);
  visit("ready_seconds", r.ready_seconds);
  visit("seconds", r.seconds);
  visit("log_bytes", r.log_bytes);
  visit("log_left_out", r.log_left_out);
  visit("model", r.model);
  visit("command", r.command);
  visit("env", r.env);
}

}  // namespace

std::string_view name_of(Outcome outcome) { return kOutcomes[static_cast<size_t>(outcome)]; }

std::string to_json(const CellResult& result) {
  Json json = {{"outcome", name_of(result.outcome)}};
  visit_result(result, [&](const char* key, const auto& value) { json[key] = value; });
  json["answers"] = Json::array();
  for (const KeptAnswer& a : result.answers)
    json["answers"].push_back({{"prompt", a.prompt}, {"text", a.text}, {"finding", a.finding}});
  json["bench"] = Json::array();
  for (const BenchPoint& p : result.bench) {
    Json row;
    visit_point(p, [&](const char* key, const auto& value) { row[key] = value; });
    json["bench"].push_back(std::move(row));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<CellResult> result_of(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    CellResult result;
    const auto outcome = std::find(kOutcomes.begin(), kOutcomes.end(), json.at("outcome").get<std::string>());
    if (outcome == kOutcomes.end()) return std::nullopt;
    result.outcome = static_cast<Outcome>(outcome - kOutcomes.begin());
    visit_result(result, [&](const char* key, auto& value) { json.at(key).get_to(value); });
    for (const Json& a : json.at("answers"))
      result.answers.push_back(
          {a.at("prompt").get<std::string>(), a.at("text").get<std::string>(), a.at("finding").get<std::string>()});
    for (const Json& row : json.at("bench")) {
      BenchPoint point;
      visit_point(point, [&](const char* key, auto& value) { row.at(key).get_to(value); });
      result.bench.push_back(point);
    }
    return result;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string beside = fmt::format("{}.{}.new", path, getpid());
  const auto give_up = [&](int fd) {
    const int error = errno;
    if (fd >= 0) close(fd);
    unlink(beside.c_str());
    fail(Code::kDevice, fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
  };
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) give_up(fd);
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) give_up(fd);
    done += static_cast<size_t>(n);
  }
  if (fsync(fd) != 0 && errno != EINVAL) give_up(fd);
  close(fd);
  if (rename(beside.c_str(), path.c_str()) != 0) give_up(-1);
}

std::string read_small(const std::string& path, size_t limit) {
  std::ifstream in(path, std::ios::binary);
  std::string text(limit + 1, '\0');
  if (!in) return "";
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text.size() > limit ? "" : text;
}

}  // namespace mettle::sweep

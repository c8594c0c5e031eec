#include "hub/session.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <exception>
#include <random>
#include <thread>

#include "base/error.h"
#include "hub/names.h"

namespace mettle::hub {
namespace {

constexpr int kMostFailures = 8;  // in a row: about a minute of pauses
constexpr int kMostRedirects = 8;
constexpr double kMostAskedSeconds = 600;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Seconds that Retry-After asks for, a number or a date; negative: it does not.
double asked_pause(const HttpReply& reply) {
  const std::string text(reply.header("retry-after"));
  if (text.empty()) return -1;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size() && seconds >= 0) return seconds;
  const time_t date = curl_getdate(text.c_str(), nullptr);
  return date < 0 ? -1 : std::max(0.0, std::difftime(date, std::time(nullptr)));
}

double own_pause(int failures) {
  thread_local std::minstd_rand random(std::random_device{}());
  const double most = std::min(0.25 * static_cast<double>(1 << failures), 20.0);
  return most * std::uniform_real_distribution<double>(0.5, 1)(random);  // clients that failed together part
}

// Queries of redirects carry signatures, which belong in no log.
std::string without_queries(std::string text) {
  for (size_t at = 0; (at = text.find('?', at)) != std::string::npos; ++at)
    text.erase(at + 1, text.find_first_of(" :", at) == std::string::npos ? std::string::npos
                                                                         : text.find_first_of(" :", at) - at - 1);
  return text;
}

}  // namespace

bool is_passing(const HttpReply& reply) {
  if (reply.end == HttpEnd::kTimeout || reply.end == HttpEnd::kCut || reply.end == HttpEnd::kRefused) return true;
  return reply.end == HttpEnd::kDone && (reply.status == 408 || reply.status == 429 || reply.status >= 500);
}

void Patience::wait(const std::string& what, const HttpReply& reply) {
  const std::string why = reply.end == HttpEnd::kDone || reply.end == HttpEnd::kStopped
                              ? fmt::format("status {}", reply.status)
                              : without_queries(reply.error);
  if (++failures_ >= kMostFailures)
    fail(Code::kDevice, fmt::format("{}: {} failures in a row, the last one: {}", what, failures_, printable(why)));
  const double asked = asked_pause(reply);
  if (asked > kMostAskedSeconds)
    fail(Code::kDevice, fmt::format("{}: the server asks to wait for {:.0f} s ({}), at most {:.0f} are waited", what,
                                    asked, printable(why), kMostAskedSeconds));
  const double pause = asked >= 0 ? asked : own_pause(failures_ - 1);
  if (options_.on_note) options_.on_note(fmt::format("{}: {}; again in {:.1f} s", what, printable(why), pause));
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(pause);
  while (std::chrono::steady_clock::now() < until && !(options_.stop != nullptr && *options_.stop))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

HttpReply Session::get(const Get& get) {
  HttpRequest request;
  request.url = get.url;
  request.total_seconds = 0;
  request.silence_seconds = 60;
  request.connect_seconds = 20;
  request.body_limit = get.body_limit;
  request.stop = options_.stop;
  std::string error_body;
  for (int redirects = 0;; ++redirects) {
    const std::string origin = origin_of(request.url);
    if (origin.empty()) fail(Code::kBadModel, fmt::format("{}: must be a http or https URL", printable(request.url)));
    request.headers = get.headers;
    request.headers.emplace_back("user-agent", "mettle");
    if (!options_.token.empty() && origin == origin_of(options_.endpoint))
      request.headers.emplace_back("authorization", "Bearer " + options_.token);
    int status = 0;
    std::exception_ptr thrown;  // must not cross the HTTP library
    const auto guarded = [&](const auto& call) {
      try {
        return call();
      } catch (...) {
        thrown = std::current_exception();
        return false;
      }
    };
    request.on_head = [&](const HttpReply& head) {
      status = head.status;
      return is_redirect(status) || get.on_head == nullptr || guarded([&] { return get.on_head(head); });
    };
    error_body.clear();
    if (get.on_body != nullptr)
      request.on_body = [&](std::string_view piece) {
        if (status >= 200 && status < 300) return guarded([&] { return get.on_body(piece); });
        error_body.append(piece.substr(0, size_t{4096} - std::min<size_t>(error_body.size(), 4096)));
        return true;
      };
    HttpReply reply = client_.send(request);
    if (thrown != nullptr) std::rethrow_exception(thrown);
    reply.url = request.url;
    if (!error_body.empty()) reply.body = error_body;
    if (reply.end != HttpEnd::kDone || !is_redirect(reply.status)) return reply;
    const std::string next = resolved(request.url, reply.header("location"));
    if (redirects >= kMostRedirects)
      fail(Code::kBadModel, fmt::format("{}: redirected more than {} times", printable(get.url), kMostRedirects));
    if (next.empty())
      fail(Code::kBadModel, fmt::format("{}: redirected to \"{}\", which is no http or https URL",
                                        printable(request.url), printable(reply.header("location"))));
    if (origin.starts_with("https:") && !origin_of(next).starts_with("https:"))
      fail(Code::kBadModel, fmt::format("{}: redirected from https to {}", printable(request.url), printable(next)));
    request.url = next;
  }
}

HttpReply Session::get_patiently(const Get& request, const std::string& what) {
  Patience patience(options_);
  while (true) {
    HttpReply reply = get(request);
    if (reply.ok()) return reply;
    if (reply.end == HttpEnd::kTooLarge || reply.end == HttpEnd::kStopped) fail(Code::kBadModel, reply.error);
    if (!is_passing(reply)) fail(Code::kBadModel, why_refused(options_, reply, what));
    patience.wait(what, reply);
    if (options_.stop != nullptr && *options_.stop) fail(Code::kDevice, fmt::format("{}: stopped", what));
  }
}

std::string why_refused(const SessionOptions& options, const HttpReply& reply, const std::string& what) {
  const std::string code(reply.header("x-error-code"));
  const std::string said = printable(reply.header("x-error-message"));
  std::string advice;
  const char* token = options.token.empty() ? "no token is set: HF_TOKEN, or the file token in HF_HOME"
                                            : "the token that is set was not accepted for it";
  if (reply.status == 401)
    advice = fmt::format("not there or not public; {}", token);
  else if (reply.status == 403 || code == "GatedRepo")
    advice = fmt::format("gated: ask for access on the page of the model; {}", token);
  else if (code == "RevisionNotFound")
    advice = "there is no such revision";
  else if (reply.status == 404)
    advice = "not there; is the name right?";
  return fmt::format("{}: status {} of {}{}{}{}", what, reply.status,
                     printable(reply.url.substr(0, reply.url.find('?'))), said.empty() ? "" : ": ", said,
                     advice.empty() ? "" : fmt::format(" ({})", advice));
}

}  // namespace mettle::hub

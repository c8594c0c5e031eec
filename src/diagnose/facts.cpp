#include "diagnose/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace mettle::diagnose {
namespace {

using std::string_view;

double number(string_view s) { return std::strtod(std::string(s).c_str(), nullptr); }

bool has(const Context& c, const char* fact) { return c.run.facts.contains(fact); }

double gib(string_view value, string_view unit) {
  const double n = number(value);
  return unit.substr(0, 1) == "M" ? n / 1024 : unit.substr(0, 1) == "K" ? n / 1048576 : n;
}

// PyTorch prints what was asked for, what was free and who holds the rest.
void read_memory(const Event& e, Finding& f) {
  static const Pattern asked(R"(Tried to allocate ([\d.]+) ([KMG])iB)");
  static const Pattern free(R"(total capacity of ([\d.]+) GiB of which ([\d.]+) ([KMG])iB is free)");
  static const Pattern other(R"(Process \d+ has ([\d.]+) GiB memory in use)");
  std::vector<string_view> a, b, o;
  const std::string& text = e.place.line.text;
  if (!asked.search(text, &a) || !free.search(text, &b)) return;
  const double want = gib(a[1], a[2]), total = number(b[1]), left = gib(b[2], b[3]);
  if (other.search(text, &o) && text.find("this process has") != std::string::npos && number(o[1]) > 0.15 * total) {
    f.cause = "LEFTOVER_OR_TENANT";
    f.remark = fmt::format("Another process holds {} of {:.2f} GiB of the GPU", o[1], total);
  } else if (left > 1.05 * want) {
    f.cause = "VRAM_FRAGMENTED";
    f.remark = fmt::format("{:.2f} GiB were free when {:.2f} GiB were asked for: the memory is there, but in pieces",
                           left, want);
  }
}

bool in_answer(const Event& e) {
  const Head head = parse_head(e.place.line.text);
  string_view body = head.body;
  while (!body.empty() && std::isspace(static_cast<unsigned char>(body.back())) != 0) body.remove_suffix(1);
  while (!body.empty() && std::isspace(static_cast<unsigned char>(body.front())) != 0) body.remove_prefix(1);
  const char c = e.groups.size() > 1 && !e.groups[1].empty() ? e.groups[1][0] : '!';
  if (std::all_of(body.begin(), body.end(), [c](char x) { return x == c; })) return c == '!' && e.count < 2;
  static const Pattern answer(
      R"((?i)["'`]|\b(text|content|answer|output|generated|completion|response|delta|reply|token)s?\b)");
  return answer.search(body);
}

bool error_line(const Event& e) {
  static const Pattern exception(
      R"(^([A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|NotFound)\b|[\w./-]+(\.py)?( \w+)?: (error:|--)|  what\(\):))");
  static const Pattern said(R"((?i)\b(error|fatal|exception|failed|failure|cannot|could not|couldn't|unable)\b)");
  if (e.level == Level::kInfo || e.level == Level::kDebug || e.level == Level::kWarn) return false;
  const Head head = parse_head(e.place.line.text);
  return e.level == Level::kError || exception.search(head.body) || said.search(head.body);
}

bool silent(const Event& e, const Context& c) {
  const int64_t enough = int64_t{1000} * e.signature->amount;
  if (c.run.tuned.seq > e.last_seq) return false;  // it was slow and ended
  for (const Event& other : c.run.events)
    if (other.signature == e.signature &&
        (other.silence_ms >= enough ||
         (other.last_line && c.options.silent_s && *c.options.silent_s * int64_t{1000} >= enough)))
      return true;
  return false;
}

void gate_or_toolkit(const Context& c, Finding& f) {
  const int sm = sm_number(c.device);
  if (c.toolkit.empty() || sm == 0) return;
  const double toolkit = number(c.toolkit), need = sm >= 120 ? 12.9 : sm >= 100 ? 12.8 : sm >= 90 ? 11.8 : 11.0;
  f.cause = toolkit + 1e-6 < need ? "TOOLKIT_TOO_OLD" : "GATE_TOO_NARROW";
  f.remark = fmt::format(
      "The device is SM{}, the toolkit {}: {}", sm, c.toolkit,
      f.cause == "TOOLKIT_TOO_OLD" ? "it is older than the GPU" : "the build's filter does not know the GPU");
}

// Of the rows with a second fact: whether it is there. May change cause and confidence.
bool fact_holds(const Event& e, const Context& c, Finding& f) {
  const Signature& s = *e.signature;
  switch (s.need) {
    case Need::kNone:
      return true;
    case Need::kDevice: {
      const int sm = sm_number(c.device);
      if (sm == 0) f.confidence = Confidence::kLow;
      return sm == 0 || sm >= s.amount;
    }
    case Need::kNoneSurvived:
      return has(c, "none survived") || has(c, "slow");
    case Need::kSilence:
      return silent(e, c);
    case Need::kFragmented:
      if (e.count < 2) f.confidence = Confidence::kLow;
      return true;
    case Need::kTwice: {
      if (e.groups.size() < 3) return false;
      const double a = number(e.groups[1]), b = number(e.groups[2]);
      return a == 2 * b || b == 2 * a;
    }
    case Need::kLongContext:
      return has(c, "long context");
    case Need::kRepeated:
      return e.streak >= static_cast<uint64_t>(s.amount);
    case Need::kAnswer:
      return in_answer(e);
    case Need::kSlow:
      return has(c, "slow");
    case Need::kClientComplaint:
      return has(c, "client complaint");
    case Need::kNoZeroCount: {
      static const Pattern none(R"((?i)\b(0|no|zero) (rows?|nans?|of|values|elements|differ))");
      return !none.search(e.place.line.text);
    }
    case Need::kEngineDied:
      return c.died_seq > e.place.seq;
    case Need::kGateOrToolkit:
      gate_or_toolkit(c, f);
      return true;
    case Need::kErrorLine:
      return error_line(e);
  }
  return false;
}

}  // namespace

int sm_number(const std::string& device) {
  static const Pattern p(R"(^(?i:sm_?)?(?:(\d{2,3})|(\d{1,2})\.(\d))[af]?$)");
  std::vector<string_view> g;
  if (!p.search(device, &g)) return 0;
  const int sm =
      g[1].empty() ? std::atoi(std::string(g[2]).c_str()) * 10 + (g[3][0] - '0') : std::atoi(std::string(g[1]).c_str());
  return sm >= 50 && sm < 200 ? sm : 0;
}

bool kills_server(const Event& e) {
  static const Pattern process(R"(Killed process \d+[, ]*\(([^)]+)\)|task=([^,]+),)");
  static const Pattern server(
      R"((?i)python|vllm|sglang|trtllm|tensorrt|mettle|llama|ray|pt_main|mpi|torchrun|cicc|nvcc|ptxas|cc1plus|cudafe|ninja|server)");
  std::vector<string_view> g;
  if (!process.search(e.place.line.text, &g)) return true;
  return server.search(g[1].empty() ? g[2] : g[1]);
}

std::optional<Finding> judge(const Event& e, const Context& c) {
  const Signature& s = *e.signature;
  if ((s.kind == Kind::kCause || s.kind == Kind::kSymptom || s.kind == Kind::kPlain) && (e.handled || e.probing))
    return std::nullopt;
  Finding f{&e, s.cause, s.confidence, {}};
  if (!fact_holds(e, c, f)) return std::nullopt;
  if (s.confidence == Confidence::kLow && s.need != Need::kNone && s.need != Need::kErrorLine)
    f.confidence = Confidence::kMedium;
  if (s.cause == "VRAM_OOM") read_memory(e, f);
  if (s.cause == "HOST_OOM") {
    static const Pattern compiler(R"(\((cicc|nvcc|ptxas|cc1plus|cudafe\+\+|ninja)\))");
    if (!kills_server(e)) return std::nullopt;
    if (compiler.search(e.place.line.text)) {
      f.cause = "HOST_OOM_JIT";
      f.remark = "The kernel killed a compiler for memory";
    }
    // A SIGKILL alone says not who sent it: a kernel log without an out-of-memory line speaks against it.
    if (s.id == "S035" && c.kernel_log && !c.kernel_oom) return std::nullopt;
    if (c.kernel_oom) f.confidence = Confidence::kHigh;
  }
  if (c.table.classes.at(f.cause).disputed) f.confidence = Confidence::kLow;
  return f;
}

}  // namespace mettle::diagnose

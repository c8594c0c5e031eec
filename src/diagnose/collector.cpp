#include "diagnose/collector.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace mettle::diagnose {
namespace {

using std::string_view;

constexpr size_t kTextLimit = 600;
constexpr size_t kRanks = 256, kEvents = 4096, kUnmatched = 16, kMisleading = 8;
constexpr uint64_t kChain = 4;     // lines between the tracebacks of a chain
constexpr int kWatchLines = 1000;  // lines without a time after which a pause can no longer be told
constexpr int kLook = 64;          // lines from which it is told whether this is text at all
constexpr int kTraceIdle = 400;    // lines without a frame after which a traceback counts as cut

bool blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool upper(char c) { return c >= 'A' && c <= 'Z'; }
bool digit_or_letter(char c) { return (c >= '0' && c <= '9') || upper(c) || (c >= 'a' && c <= 'z'); }

string_view trimmed(string_view s) {
  while (!s.empty() && blank(s.front())) s.remove_prefix(1);
  while (!s.empty() && blank(s.back())) s.remove_suffix(1);
  return s;
}

// Control characters beyond those of terminals.
bool is_text(string_view line) {
  return std::none_of(line.begin(), line.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 0x7f || (byte < 0x20 && string_view("\t\r\x1b\b\f\a").find(c) == string_view::npos);
  });
}

// KeyboardInterrupt and the like end a program that was asked to end.
bool asked_for(string_view exception) {
  for (const string_view name :
       {string_view("KeyboardInterrupt"), string_view("SystemExit"), string_view("GeneratorExit"),
        string_view("asyncio.exceptions.CancelledError"), string_view("CancelledError"), string_view("StopIteration"),
        string_view("BrokenPipeError")})
    if (exception.substr(0, name.size()) == name) return true;
  return false;
}

const Pattern& says_error() {
  static const Pattern p(R"((?i)^\s*(error|fatal)( while|:| -|  ))");
  return p;
}

// "torch.OutOfMemoryError: ...", "AssertionError": the line that ends a traceback.
bool is_exception(string_view body) {
  size_t n = 0, capitals = 0;
  for (; n < body.size() && (digit_or_letter(body[n]) || body[n] == '.' || body[n] == '_'); ++n)
    capitals += upper(body[n]) ? 1 : 0;
  return n >= 4 && capitals > 0 &&
         (n == body.size() || body.substr(n, 2) == ": " || (body[n] == ':' && n + 1 == body.size()));
}

int weight_of_frame(const std::string& phase) {
  if (phase == "capture") return 4;
  if (phase == "shuffle") return 3;
  return phase == "tune" ? 2 : 1;
}

bool after_ready(const std::string& phase) { return phase == "first request" || phase == "serving"; }

}  // namespace

Collector::Collector(const Table& table, const NeedleIndex& index)
    : table_(table), owners_(index.owners), scanner_(index.scanner) {
  out_.runs.emplace_back();
}

void Collector::begin_file(const std::string& name, bool kernel_log) {
  if (kernel_log) end_log();
  file_ = name;
  kernel_file_ = kernel_log;
  out_.kernel_log = out_.kernel_log || kernel_log;
  traces_.clear();
  open_traces_ = 0;
  inherited_.clear();
  last_time_.clear();
  file_time_ = Stamp{};
}

void Collector::end_log() {
  if (watched_ >= 0) {
    Event& e = run().events[static_cast<size_t>(watched_)];
    e.last_line = e.last_seq == seq_;
  }
  watched_ = -1;
}

void Collector::line(string_view raw, uint64_t number) {
  number_ = number;
  if (out_.looked_at < kLook && !raw.empty()) {
    ++out_.looked_at;
    out_.no_text += is_text(raw) ? 0 : 1;
  }
  if (!raw.empty() && raw.front() == '{' && unwrap_json(raw, json_)) raw = json_;
  if (!raw.empty() && std::memchr(raw.data(), '\x1b', raw.size()) != nullptr) {
    strip_terminal_codes(raw, clean_);
    raw = clean_;
  }
  // A carriage return parts what overwrote each other on the terminal; the newest stands last.
  while (!raw.empty()) {
    const auto* cr = static_cast<const char*>(std::memchr(raw.data(), '\r', raw.size()));
    const size_t length = cr == nullptr ? raw.size() : static_cast<size_t>(cr - raw.data());
    if (length > 0) text(raw.substr(0, length));
    raw.remove_prefix(cr == nullptr ? raw.size() : length + 1);
  }
}

void Collector::text(string_view clean) {
  ++seq_;
  ++run().lines;
  hits_.clear();
  scanner_.scan(clean, hits_);
  if ((hits_.empty() || cheap(clean)) && open_traces_ == 0 && watched_ < 0) {
    if (!kernel_file_) remember(clean);
    return;
  }
  full(clean);
}

// Every line may be the last one.
void Collector::remember(string_view clean) {
  out_.last.seq = seq_;
  out_.last.line.line = number_;
  out_.last.line.text.assign(clean.substr(0, kTextLimit));
  if (out_.last.line.file != file_) out_.last.line.file = file_;
}

// Lines of a serving server hold nothing but what it produced: no head needs to be read for that.
bool Collector::cheap(string_view clean) {
  for (const NeedleHit& hit : hits_)
    for (const Owner& owner : owners_[hit.needle]) {
      if (owner.what != Owner::What::kMarker) return false;
      const Marker::What what = table_.markers[owner.index].what;
      if (what != Marker::What::kSuccess && what != Marker::What::kSpeed) return false;
    }
  for (const NeedleHit& hit : hits_)
    for (const Owner& owner : owners_[hit.needle]) marker(table_.markers[owner.index], hit, clean, Head{});
  return true;
}

Place Collector::place(string_view clean, const Head& head) const {
  Place p;
  p.seq = seq_;
  p.time_ms = head.time_ms;
  p.whole_seconds = head.whole_seconds;
  p.clock = head.clock;
  p.line.file = file_;
  p.line.line = number_;
  p.line.text.assign(clean.substr(0, kTextLimit));
  return p;
}

std::string Collector::label(const Head& head) {
  if (head.rank.empty()) return {};
  std::string label = rank_label(head.rank);
  if (ranks_.size() >= kRanks && !ranks_.contains(label)) return {};
  ranks_.insert(label);
  return label;
}

std::string Collector::phase_of(const std::string& rank) const {
  const auto own = run().rank_phase.find(rank);
  const std::string& phase = own == run().rank_phase.end() || after_ready(run().phase) ? run().phase : own->second;
  const auto trace = traces_.find(rank);
  const bool framed = trace != traces_.end() && trace->second.open && !trace->second.phase.empty();
  return framed && !after_ready(phase) ? trace->second.phase : phase;
}

void Collector::full(string_view clean) {
  Head head = parse_head(clean);
  head.kernel = head.kernel || kernel_file_;
  const bool bare = head.rank.empty() && !head.time_ms && head.level == Level::kNone;
  if (bare && inherits()) head.rank = inherited_;
  const std::string rank = label(head);
  watch(head);
  if (head.time_ms) {
    last_time_[rank] = file_time_ = {head.time_ms, head.whole_seconds, head.clock};
  } else {
    // The rest of a traceback is as old as its first line, anything else as the line before it.
    const auto own = last_time_.find(rank);
    const Stamp& stamp = bare && !rank.empty() && own != last_time_.end() ? own->second : file_time_;
    head.time_ms = stamp.time_ms;
    head.whole_seconds = stamp.whole_seconds;
    head.clock = stamp.clock;
  }
  if (!kernel_file_ && !trimmed(clean).empty()) remember(clean);
  candidates_.clear();
  misleads_.clear();
  bool frame = false, error = false;
  for (const NeedleHit& hit : hits_)
    for (const Owner& owner : owners_[hit.needle]) switch (owner.what) {
        case Owner::What::kSignature:
          candidates_.push_back(owner.index);
          break;
        case Owner::What::kMarker:
          marker(table_.markers[owner.index], hit, clean, head);
          break;
        case Owner::What::kMisleading:
          misleads_.push_back(owner.index);
          break;
        case Owner::What::kFrame:
          frame = true;
          break;
        case Owner::What::kError:
          error = true;
          break;
      }
  if (frame && trimmed(head.body).substr(0, 6) == "File \"") {
    Trace& t = traces_[rank];
    if (!t.open) {
      t = Trace{};
      t.open = true;
      ++open_traces_;
    }
    t.idle = 0;
    Place& last = run().last_frame;
    last.seq = seq_;
    last.line.line = number_;
    last.line.text.assign(clean.substr(0, kTextLimit));
    if (last.line.file != file_) last.line.file = file_;
    return;
  }
  // Some servers write the rank before the first line of a traceback alone.
  if (!head.rank.empty() && head.body.find("Traceback (most recent call last)") != string_view::npos) {
    if (head.rank != inherited_) inherited_ = std::string(head.rank);  // the view may be of inherited_ itself
    inherited_until_ = seq_ + kChain;
  }
  match(clean, head);
  if (open_traces_ > 0) trace(clean, head);
  if (error && (head.level == Level::kError || is_exception(head.body) || says_error().search(head.body)))
    unmatched(clean, head);
}

void Collector::marker(const Marker& m, const NeedleHit& hit, string_view clean, const Head& head) {
  using What = Marker::What;
  Run& r = run();
  if (m.has_pattern && !m.pattern.search(clean)) return;
  switch (m.what) {
    case What::kPhase: {
      if (m.value == "first request" ? r.phase == "serving" : after_ready(r.phase) && r.ready.seq > 0) break;
      r.phase = m.value;
      if (const std::string rank = rank_label(head.rank); !rank.empty() && ranks_.contains(rank))
        r.rank_phase[rank] = m.value;
      break;
    }
    case What::kReady:
      if (r.ready.seq == 0) r.ready = place(clean, head);
      break;
    case What::kSpeed:
      if (std::strtod(std::string(clean.substr(hit.end, 16)).c_str(), nullptr) <= 0) break;
      [[fallthrough]];
    case What::kSuccess:
      ++r.successes;
      if (r.first_success.seq == 0) {
        r.first_success = place(clean, head);
        r.phase = "serving";
      }
      r.last_success.seq = seq_;
      break;
    case What::kStopping:
      // What broke before it was ready stops it too, with the same words.
      if (r.stopping.seq == 0 && !failed() && (r.ready.seq > 0 || r.unmatched.empty())) r.stopping = place(clean, head);
      break;
    case What::kStart:
      if (head.rank.empty() && (failed() || r.stopping.seq > 0)) start_run();
      if (run().phase.empty()) run().phase = "import";
      break;
    case What::kTuned:
      r.tuned = place(clean, head);
      break;
    case What::kEngine:
      ++out_.engines[m.value];
      break;
    case What::kDevice: {
      if (!out_.device.empty()) break;
      if (m.value != "number") {
        out_.device = m.value;
      } else {
        int major = 0, minor = 0;
        const std::string rest(clean.substr(hit.end, 12));
        if (std::sscanf(rest.c_str(), "%d%*[., ]%d", &major, &minor) != 2 || major < 5 || major > 20 || minor > 9)
          break;
        out_.device = "sm" + std::to_string(major) + std::to_string(minor);
      }
      out_.device_place = place(clean, head);
      break;
    }
    case What::kToolkit: {
      if (!out_.toolkit.empty()) break;
      int major = 0, minor = 0;
      const std::string rest(clean.substr(hit.end, 16));
      const size_t digit = rest.find_first_of("0123456789");
      if (digit == std::string::npos || std::sscanf(rest.c_str() + digit, "%d.%d", &major, &minor) != 2) break;
      out_.toolkit = std::to_string(major) + "." + std::to_string(minor);
      out_.toolkit_place = place(clean, head);
      break;
    }
    case What::kFrame: {
      Trace& t = traces_[label(head)];
      if (!t.open) {
        t = Trace{};
        t.open = true;
        ++open_traces_;
      }
      if (const int weight = weight_of_frame(m.value); weight >= t.rank_of_phase) {
        t.rank_of_phase = weight;
        t.phase = m.value;
      }
      break;
    }
    case What::kFact:
      if (!r.facts.contains(m.value)) r.facts[m.value] = place(clean, head);
      break;
  }
}

void Collector::match(string_view clean, const Head& head) {
  patterns_.begin(clean);
  std::vector<string_view>& groups = groups_;
  std::sort(candidates_.begin(), candidates_.end());
  candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
  bool in_table = false, matched = false;
  quiet_match_ = false;
  // The source line under a frame: it may hold any words.
  const bool code = open_traces_ > 0 && head.body.substr(0, 4) == "    ";
  for (const uint32_t i : candidates_) {
    const Signature& s = table_.signatures[i];
    if (s.generic && code) break;
    if (s.generic && (in_table || matched)) break;  // rows stand before rules, and the first rule counts
    if (!s.pattern.search(s.generic ? head.body : clean, &groups)) continue;
    const string_view from = s.generic ? head.body : clean;
    const string_view before = from.substr(0, static_cast<size_t>(groups[0].data() - from.data()));
    matched = true;
    quiet_match_ = quiet_match_ || s.kind == Kind::kNoise || s.kind == Kind::kWrapper;
    if (s.need != Need::kAnswer && (patterns_.search(Guard::kEcho, before) || patterns_.search(Guard::kRemark, before)))
      continue;
    in_table = in_table || !s.generic;
    record(s, clean, head, groups);
  }
  for (const uint32_t i : misleads_) {
    const Misleading& m = table_.misleading[i];
    if (run().misleading.size() >= kMisleading || !m.pattern.search(head.body)) continue;
    const auto& known = run().misleading;
    if (std::any_of(known.begin(), known.end(), [&](const Line& l) { return l.remark == m.why; })) continue;
    Line line = place(clean, head).line;
    line.remark = m.why;
    run().misleading.push_back(std::move(line));
  }
}

void Collector::record(const Signature& s, string_view clean, const Head& head, std::vector<string_view>& groups) {
  std::string rank = label(head);
  if (rank.empty() && (s.kind == Kind::kCause || s.kind == Kind::kWrapper)) {
    std::vector<string_view> number;
    if (patterns_.search(Guard::kNamedRank, head.body, &number))
      rank = rank_label(number[1].empty() ? number[2] : number[1]);
  }
  if (s.cause == "LEFTOVER_OR_TENANT" && failed() &&
      std::any_of(run().events.begin(), run().events.end(),
                  [](const Event& e) { return e.signature->kind == Kind::kWrapper; }))
    start_run();  // the next start meets what the last one left behind
  Event e;
  e.signature = &s;
  e.rank = rank;
  e.phase = phase_of(rank_label(head.rank));
  e.level = head.level;
  e.kernel = head.kernel;
  e.probing = patterns_.search(Guard::kProbing, clean);
  e.handled = head.level != Level::kError && patterns_.search(Guard::kHandled, clean);
  const std::string key = s.id + '\n' + rank + (e.handled ? "\nh" : "") + (e.probing ? "\np" : "");
  const auto known = index_.find(key);
  size_t at = 0;
  if (known != index_.end()) {
    at = known->second;
    Event& old = run().events[at];
    ++old.count;
    old.row = run().last_success.seq > old.last_seq ? 1 : old.row + 1;
    old.streak = std::max(old.streak, old.row);
  } else {
    if (run().events.size() >= kEvents) return;
    e.place = place(clean, head);
    for (size_t i = 0; i < groups.size() && i < 4; ++i) e.groups.emplace_back(groups[i].substr(0, 80));
    at = run().events.size();
    run().events.push_back(std::move(e));
    index_.emplace(key, at);
  }
  Event& event = run().events[at];
  event.last_seq = seq_;
  event.last_time_ms = head.time_ms;
  event.last_clock = head.clock;
  if (s.need == Need::kSilence) {
    watched_ = static_cast<long>(at);
    watched_lines_ = 0;
  }
}

// A traceback ends with the first line of its rank that is not indented.
void Collector::trace(string_view clean, const Head& head) {
  const std::string rank = rank_label(head.rank);
  const auto at = traces_.find(rank);
  if (at == traces_.end() || !at->second.open) return;
  Trace& t = at->second;
  const string_view body = head.body;
  if (++t.idle > kTraceIdle) {
    t.open = false;
    --open_traces_;
    return;
  }
  if (body.empty() || body.front() == ' ' || body.front() == '\t' || body.substr(0, 9) == "Traceback") {
    if (!body.empty()) run().cut_trace = seq_;
    return;
  }
  t.open = false;
  --open_traces_;
  if (!inherited_.empty() && rank == rank_label(inherited_)) inherited_until_ = seq_ + kChain;
  if (is_exception(body)) unmatched(clean, head);
}

// Kept also when a row matched: its second fact may be missing.
void Collector::unmatched(string_view clean, const Head& head) {
  auto& list = run().unmatched;
  if (list.size() >= kUnmatched || quiet_match_ || run().stopping.seq > 0 || asked_for(head.body)) return;
  if (!list.empty() && list.back().place.seq == seq_) return;
  const std::string rank = label(head);
  list.push_back({place(clean, head), rank, phase_of(rank)});
}

// How long nothing was written after a line that is harmless unless it is the last.
void Collector::watch(const Head& head) {
  if (watched_ < 0) return;
  Event& e = run().events[static_cast<size_t>(watched_)];
  if (++watched_lines_ > kWatchLines) watched_ = -1;
  if (watched_ < 0 || !head.time_ms || !e.last_time_ms || head.clock != e.last_clock) return;
  if (*head.time_ms < *e.last_time_ms) return;  // of another clock
  e.silence_ms = std::max(e.silence_ms, *head.time_ms - *e.last_time_ms);
  watched_ = -1;
}

bool Collector::inherits() const {
  if (inherited_.empty()) return false;
  const auto at = traces_.find(rank_label(inherited_));
  return seq_ <= inherited_until_ || (at != traces_.end() && at->second.open);
}

bool Collector::failed() const {
  const auto& events = run().events;
  return std::any_of(events.begin(), events.end(), [](const Event& e) {
    return !e.handled && !e.probing && (e.signature->kind == Kind::kWrapper || e.signature->kind == Kind::kCause);
  });
}

void Collector::start_run() {
  if (out_.runs.size() > 1) {
    out_.runs.erase(out_.runs.begin());
    ++out_.earlier_runs;
  }
  out_.runs.emplace_back();
  index_.clear();
  traces_.clear();
  open_traces_ = 0;
  watched_ = -1;
}

Collected Collector::finish() {
  end_log();
  return std::move(out_);
}

}  // namespace mettle::diagnose

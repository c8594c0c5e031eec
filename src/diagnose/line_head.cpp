#include "diagnose/line_head.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "diagnose/line_time.h"

namespace mettle::diagnose {
namespace {

using std::string_view;

bool digit(char c) { return c >= '0' && c <= '9'; }
bool upper(char c) { return c >= 'A' && c <= 'Z'; }
bool lower(char c) { return c >= 'a' && c <= 'z'; }
bool letter(char c) { return upper(c) || lower(c); }
bool word(char c) { return letter(c) || digit(c) || c == '_' || c == '-' || c == '.'; }
// The first byte decides nearly always, without a call.
bool starts(string_view s, string_view with) {
  return s.size() >= with.size() && s[0] == with[0] && std::memcmp(s.data(), with.data(), with.size()) == 0;
}

size_t digits(string_view s) {
  size_t n = 0;
  while (n < s.size() && digit(s[n])) ++n;
  return n;
}

void skip_spaces(string_view& s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
}

// One space parts a head from its body; more belong to the body, as in a traceback.
void skip_space(string_view& s) {
  if (!s.empty() && s.front() == ' ') s.remove_prefix(1);
}

bool take(string_view& s, string_view what) {
  if (!starts(s, what)) return false;
  s.remove_prefix(what.size());
  return true;
}

// Without it there is no "rank" either.
bool holds_nk(string_view s) {
  for (size_t i = 1; i < s.size(); ++i)
    if ((s[i] | 0x20) == 'k' && (s[i - 1] | 0x20) == 'n') return true;
  return false;
}

// "TP0", "DP0 TP3 EP3", "PP1_TP0", "rank=3": the words that name a worker, or empty.
string_view worker_in(string_view s) {
  size_t begin = string_view::npos, end = 0;
  for (size_t i = 0; i + 2 < s.size(); ++i) {
    const bool kind = (s[i] == 'T' || s[i] == 'P' || s[i] == 'E' || s[i] == 'D') && s[i + 1] == 'P' && digit(s[i + 2]);
    if (!kind || (i > 0 && (letter(s[i - 1]) || digit(s[i - 1])))) continue;
    if (begin == string_view::npos) begin = i;
    i += 2;
    while (i < s.size() && digit(s[i])) ++i;
    end = i;
    --i;
  }
  if (begin != string_view::npos) return s.substr(begin, end - begin);
  if (!holds_nk(s)) return {};
  for (const string_view name : {string_view("rank="), string_view("rank "), string_view("RANK ")}) {
    const size_t at = s.find(name);
    if (at == string_view::npos) continue;
    const string_view number = s.substr(at + name.size());
    if (const size_t n = digits(number); n > 0) return number.substr(0, n);
  }
  return {};
}

Level level_of(string_view w) {
  static constexpr std::array<std::pair<string_view, Level>, 17> kLevels{{{"ERROR", Level::kError},
                                                                          {"error", Level::kError},
                                                                          {"CRITICAL", Level::kError},
                                                                          {"FATAL", Level::kError},
                                                                          {"E", Level::kError},
                                                                          {"F", Level::kError},
                                                                          {"WARNING", Level::kWarn},
                                                                          {"WARN", Level::kWarn},
                                                                          {"warning", Level::kWarn},
                                                                          {"W", Level::kWarn},
                                                                          {"INFO", Level::kInfo},
                                                                          {"info", Level::kInfo},
                                                                          {"I", Level::kInfo},
                                                                          {"DEBUG", Level::kDebug},
                                                                          {"TRACE", Level::kDebug},
                                                                          {"D", Level::kDebug},
                                                                          {"V", Level::kDebug}}};
  for (const auto& [name, level] : kLevels)
    if (w == name) return level;
  return Level::kNone;
}

class HeadParser {
 public:
  explicit HeadParser(string_view line) : s_(line) {}

  Head parse() {
    for (int turn = 0; turn < 10 && step(); ++turn) {
    }
    // NCCL names its GPU after the process: host:123:456 [3] NCCL INFO ...
    if (head_.rank.empty())
      if (const size_t at = s_.substr(0, 80 + 6).find("] NCCL "); at != string_view::npos) {
        const size_t open = s_.rfind('[', at);
        if (open != string_view::npos && digits(s_.substr(open + 1)) == at - open - 1 && at > open + 1)
          head_.rank = s_.substr(open + 1, at - open - 1);
      }
    head_.body = s_;
    return head_;
  }

 private:
  // Takes one piece of the head off the front; false when what is left is the body.
  bool step() { return time() || brackets() || parenthesis() || level() || stream() || labels() || syslog(); }

  bool time() {
    const ParsedTime t = parse_time(s_);
    if (t.length == 0) return false;
    set_time(t);
    s_.remove_prefix(t.length);
    skip_space(s_);
    return true;
  }

  void set_time(const ParsedTime& t) {
    if (head_.time_ms) return;  // the outermost clock is the same for all processes
    head_.time_ms = t.ms;
    head_.whole_seconds = t.whole_seconds;
    head_.clock = t.clock;
  }

  // [2026-01-02 10:00:00 TP0], [rank3]:, [1,3]<stderr>:, [TRT-LLM] [RANK 3] [E], [core.py:12], [pod/name/x], [123.456]
  bool brackets() {
    if (s_.empty() || s_.front() != '[') return false;
    const size_t close = s_.find(']');
    if (close == string_view::npos || close > 80 || close < 2) return false;
    const string_view inside = s_.substr(1, close - 1);
    string_view rest = s_.substr(close + 1);
    string_view number = inside;
    skip_spaces(number);
    if (const size_t n = digits(number); n > 0 && n < number.size() && number[n] == '.' &&
                                         digits(number.substr(n + 1)) == number.size() - n - 1 &&
                                         number.size() - n > 3) {
      head_.kernel = true;
      if (!head_.time_ms) {
        head_.time_ms = parse_seconds(number);
        head_.whole_seconds = false;
        head_.clock = Clock::kBoot;
      }
    } else if (const size_t comma = digits(inside);
               comma > 0 && comma < inside.size() && inside[comma] == ',' && starts(rest, "<std")) {
      head_.rank = inside.substr(comma + 1);
      rest.remove_prefix(std::min(rest.size(), rest.find('>') == string_view::npos ? 0 : rest.find('>') + 1));
    } else if ((starts(inside, "rank") || starts(inside, "default")) && digit(inside.back())) {
      head_.rank = inside.substr(inside.find_first_of("0123456789"));
    } else if (const ParsedTime t = parse_time(inside); t.length > 0) {
      set_time(t);
      if (const string_view worker = worker_in(inside.substr(t.length)); !worker.empty()) head_.rank = worker;
    } else if (const string_view worker = worker_in(inside); !worker.empty() && inside.size() < 24) {
      head_.rank = worker;
    } else if (const Level level = level_of(inside); level != Level::kNone) {
      head_.level = level;
    } else if (inside != "TRT-LLM" && inside != "TensorRT-LLM" && !starts(inside, "pod/") && !place(inside) &&
               !glog(inside)) {
      return false;
    }
    take(rest, ":");
    skip_space(rest);
    s_ = rest;
    return true;
  }

  // file.py:123
  static bool place(string_view inside) {
    const size_t colon = inside.rfind(':');
    return colon != string_view::npos && colon > 3 && digits(inside.substr(colon + 1)) == inside.size() - colon - 1 &&
           inside.find(' ') == string_view::npos && inside.find('.') != string_view::npos;
  }

  // E1129 10:00:00.123456 4242 ProcessGroupNCCL.cpp:12; W112 of January
  bool glog(string_view inside) {
    if (inside.size() < 14 || std::strchr("IWEF", inside.front()) == nullptr) return false;
    const size_t day = digits(inside.substr(1));
    if ((day != 3 && day != 4) || inside[day + 1] != ' ') return false;
    head_.level = level_of(inside.substr(0, 1));
    if (const ParsedTime t = parse_time(inside.substr(day + 2)); t.length > 0) set_time(t);
    return true;
  }

  // (Worker_TP0 pid=123), (EngineCore_DP0 pid=123), (RayWorkerWrapper pid=1, ip=10.0.0.1)
  bool parenthesis() {
    if (s_.empty() || s_.front() != '(') return false;
    const size_t close = s_.find(')');
    if (close == string_view::npos || close > 80) return false;
    const string_view inside = s_.substr(1, close - 1);
    if (inside.find("pid=") == string_view::npos) return false;
    const bool worker = inside.find("Worker") != string_view::npos || inside.find("rank") != string_view::npos;
    if (worker) head_.rank = worker_in(inside.substr(0, inside.find("pid=")));
    s_.remove_prefix(close + 1);
    skip_space(s_);
    return true;
  }

  // INFO 01-02 10:00:00 [file.py:12] text; ERROR: text; I engine: text
  bool level() {
    size_t n = 0;
    while (n < s_.size() && n < 9 && letter(s_[n])) ++n;
    const Level found = level_of(s_.substr(0, n));
    if (found == Level::kNone || n == s_.size() || head_.level != Level::kNone) return false;
    string_view rest = s_.substr(n);
    if (rest.front() == ':') {
      if (lower(s_.front())) return mark(found);  // "error: ..." is the text itself
      rest.remove_prefix(1);
      skip_spaces(rest);
    } else if (rest.front() == ' ') {
      if (lower(s_.front())) return false;
      skip_space(rest);
    } else {
      return false;
    }
    head_.level = found;
    s_ = rest;
    return true;
  }

  bool mark(Level level) {
    head_.level = level;
    return false;
  }

  // Kubernetes' container log: "stderr F text"
  bool stream() {
    for (const string_view name :
         {string_view("stderr F "), string_view("stdout F "), string_view("stderr P "), string_view("stdout P ")})
      if (head_.time_ms && take(s_, name)) return true;
    return false;
  }

  // Where " | " stands. Spaces are many, bars few.
  static size_t bar_of(string_view s) {
    for (size_t at = s.find('|', 1); at != string_view::npos && at + 1 < s.size(); at = s.find('|', at + 1))
      if (s[at - 1] == ' ' && s[at + 1] == ' ') return at - 1;
    return string_view::npos;
  }

  // "vllm-1  | text" of compose, "3: text" of srun
  bool labels() {
    if (const size_t n = digits(s_); n > 0 && n <= 4 && s_.substr(n, 2) == ": ") {
      head_.rank = s_.substr(0, n);
      s_.remove_prefix(n + 2);
      return true;
    }
    const size_t bar = bar_of(s_.substr(0, 48));
    if (bar == string_view::npos || bar == 0) return false;
    string_view name = s_.substr(0, bar);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (name.empty() || !std::all_of(name.begin(), name.end(), word)) return false;
    s_.remove_prefix(bar + 3);
    return true;
  }

  // "host unit[123]: text" after a time; "kernel: text"
  bool syslog() {
    if (take(s_, "kernel: ")) return head_.kernel = true;
    if (!head_.time_ms || syslog_) return false;
    size_t at = 0;
    while (at < s_.size() && word(s_[at])) ++at;
    if (at == 0 || at + 1 >= s_.size() || s_[at] != ' ') return false;
    size_t unit = at + 1;
    while (unit < s_.size() && (word(s_[unit]) || s_[unit] == '@' || s_[unit] == '/')) ++unit;
    if (unit == at + 1) return false;
    const string_view name = s_.substr(at + 1, unit - at - 1);
    size_t end = unit;
    if (end < s_.size() && s_[end] == '[') {
      const size_t close = s_.find(']', end);
      if (close == string_view::npos || digits(s_.substr(end + 1)) != close - end - 1) return false;
      end = close + 1;
    } else if (name != "kernel") {
      return false;
    }
    if (s_.substr(end, 2) != ": ") return false;
    syslog_ = true;
    head_.kernel = name == "kernel";
    s_.remove_prefix(end + 2);
    return true;
  }

  string_view s_;
  Head head_;
  bool syslog_ = false;
};

// The text of a JSON string that starts after its quote; stops at the closing quote.
void unescape(string_view s, std::string& text) {
  for (size_t i = 0; i < s.size() && s[i] != '"'; ++i) {
    if (s[i] != '\\' || i + 1 >= s.size()) {
      text += s[i];
      continue;
    }
    const char c = s[++i];
    if (c == 'n' || c == 'r') continue;
    if (c == 't') {
      text += '\t';
    } else if (c == 'u' && i + 4 < s.size()) {
      const std::string hex(s.substr(i + 1, 4));
      const unsigned long code = std::strtoul(hex.c_str(), nullptr, 16);
      text += code < 0x80 ? static_cast<char>(code) : '?';
      i += 4;
    } else {
      text += c;
    }
  }
}

}  // namespace

void strip_terminal_codes(string_view line, std::string& clean) {
  clean.clear();
  while (!line.empty()) {
    const auto* escape = static_cast<const char*>(std::memchr(line.data(), '\x1b', line.size()));
    const size_t plain = escape == nullptr ? line.size() : static_cast<size_t>(escape - line.data());
    clean.append(line.substr(0, plain));
    line.remove_prefix(plain);
    if (line.empty()) return;
    size_t n = 1;
    if (n < line.size() && line[n] == '[') {  // CSI: parameters up to a letter
      ++n;
      while (n < line.size() && (line[n] < '@' || line[n] > '~')) ++n;
      n = std::min(n + 1, line.size());
    } else if (n < line.size() && line[n] == ']') {  // OSC: up to BEL or the next escape
      while (n < line.size() && line[n] != '\a' && line[n] != '\x1b') ++n;
      n = std::min(n + 1, line.size());
    } else if (n < line.size()) {
      ++n;
    }
    line.remove_prefix(n);
  }
}

bool unwrap_json(string_view line, std::string& text) {
  if (line.size() < 9 || line.front() != '{' || line[1] != '"') return false;
  size_t at = string_view::npos;
  for (const string_view key :
       {string_view("\"log\":"), string_view("\"message\":"), string_view("\"msg\":"), string_view("\"MESSAGE\":")}) {
    at = line.find(key);
    if (at == string_view::npos) continue;
    at += key.size();
    break;
  }
  if (at == string_view::npos) return false;
  while (at < line.size() && line[at] == ' ') ++at;
  if (at >= line.size() || line[at] != '"') return false;
  text.clear();
  for (const string_view key :
       {string_view("\"time\":\""), string_view("\"timestamp\":\""), string_view("\"ts\":\"")}) {
    const size_t time = line.find(key);
    if (time == string_view::npos) continue;
    const string_view value = line.substr(time + key.size());
    const ParsedTime t = parse_time(value.substr(0, std::min(value.find('"'), value.size())));
    if (t.length == 0) continue;
    text.assign(line.substr(time + key.size(), t.length));
    text += ' ';
    break;
  }
  unescape(line.substr(at + 1), text);
  return true;
}

Head parse_head(string_view line) { return HeadParser(line).parse(); }

std::string rank_label(string_view rank) {
  if (rank.empty()) return {};
  std::string label(rank);
  // Only one kind of parallelism with a number beside zeros: "PP0_TP3" and "TP3 EP3" are rank 3 to everybody.
  size_t workers = 0;
  for (size_t i = 0; i + 1 < label.size(); ++i) workers += label[i + 1] == 'P' && upper(label[i]) ? 1 : 0;
  const size_t tp = label.find("TP");
  if (workers >= 1 && tp != std::string::npos && label.find("PP") == std::string::npos &&
      label.find("DP") == std::string::npos)
    label = label.substr(tp + 2, digits(string_view(label).substr(tp + 2)));
  const size_t zeros = label.find_first_not_of('0');
  if (!label.empty() && digits(label) == label.size()) label = zeros == std::string::npos ? "0" : label.substr(zeros);
  return label;
}

}  // namespace mettle::diagnose

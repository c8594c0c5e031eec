#include "diagnose/classifier.h"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/facts.h"

namespace mettle::diagnose {
namespace {

constexpr size_t kEvidence = 6, kNotes = 8;

// Whole seconds compare with whole seconds; within one the order of reading counts.
bool earlier(const Event& a, const Event& b) {
  if (a.place.time_ms && b.place.time_ms && a.place.clock == b.place.clock) {
    const bool coarse = a.place.whole_seconds || b.place.whole_seconds;
    const int64_t ta = coarse ? *a.place.time_ms / 1000 : *a.place.time_ms;
    const int64_t tb = coarse ? *b.place.time_ms / 1000 : *b.place.time_ms;
    if (ta != tb) return ta < tb;
  }
  return a.place.seq < b.place.seq;
}

std::string phase_words(const std::string& phase) {
  if (phase == "load") return "while loading";
  if (phase == "shuffle") return "while re-ordering weights";
  if (phase == "tune") return "while tuning or compiling";
  if (phase == "capture") return "in graph capture";
  if (phase == "first request") return "before the first answer";
  if (phase == "serving") return "while serving";
  return phase == "import" ? "at start-up" : "";
}

// " (while loading, rank 3)", with whatever of it is known.
std::string where(const std::string& phase, const std::string& rank) {
  std::string text = phase_words(phase);
  if (!rank.empty()) text += (text.empty() ? "rank " : ", rank ") + rank;
  return text.empty() ? text : " (" + text + ")";
}

bool asked_to_end(int code) { return code == 0 || code == 130 || code == 143 || code == -2 || code == -15; }

class Classifier {
 public:
  Classifier(const Collected& collected, const Options& options, const Table& table)
      : all_(collected), run_(collected.runs.back()), options_(options), table_(table), c_{table, run_, options} {
    c_.device = options.device.empty() ? all_.device : fmt::format("sm{}", sm_number(options.device));
    c_.toolkit = all_.toolkit;
    c_.kernel_log = all_.kernel_log;
    for (const Event& e : run_.events) {
      const bool ends = e.signature->kind == Kind::kWrapper || e.signature->id == "S035";
      if (ends && counts_as_end(e)) c_.died_seq = std::max(c_.died_seq, e.last_seq);
      const bool oom =
          e.signature->cause == "HOST_OOM" && (e.kernel || e.signature->id == "S036" || e.signature->id == "G15");
      c_.kernel_oom = c_.kernel_oom || (oom && kills_server(e));
    }
  }

  Diagnosis answer() {
    d_.device = c_.device;
    d_.engine = engine();
    if (const std::optional<Finding> f = choose()) {
      from_finding(*f);
    } else if (!fault()) {
      healthy();
    }
    misleading();
    notes();
    return std::move(d_);
  }

 private:
  bool from_dmesg(const Event& e) const {
    return std::find(options_.dmesg.begin(), options_.dmesg.end(), e.place.line.file) != options_.dmesg.end();
  }
  // A wrapper after the last answer, and not after the server was asked to end.
  bool counts_as_end(const Event& e) const {
    return !e.handled && !from_dmesg(e) && e.last_seq > run_.last_success.seq &&
           (run_.stopping.seq == 0 || e.place.seq < run_.stopping.seq);
  }
  bool bad_exit() const { return options_.exit_code && !asked_to_end(*options_.exit_code); }
  bool died() const { return c_.died_seq > 0 || bad_exit(); }
  // The server went on answering after it.
  bool survived(const Event& e) const { return run_.last_success.seq > e.last_seq && !died(); }
  bool at_the_end(const Event& e) const {
    return run_.stopping.seq > 0 && e.place.seq > run_.stopping.seq && !bad_exit();
  }

  std::string engine() const {
    std::string best;
    uint64_t votes = 0;
    for (const auto& [name, count] : all_.engines)
      if (count > votes) best = name, votes = count;
    return best;
  }

  std::vector<Finding> findings(Kind kind) {
    std::vector<Finding> list;
    for (const Event& e : run_.events) {
      if (e.signature->kind != kind || at_the_end(e)) continue;
      if (from_dmesg(e)) continue;
      std::optional<Finding> f = judge(e, c_);
      if (!f) continue;
      list.push_back(std::move(*f));
    }
    std::sort(list.begin(), list.end(),
              [](const Finding& a, const Finding& b) { return a.event->place.seq < b.event->place.seq; });
    // Not a sort: lines without a time have no order with those of other files.
    for (size_t i = 1; i < list.size(); ++i)
      if (earlier(*list[i].event, *list[0].event)) std::swap(list[0], list[i]);
    return list;
  }

  // Of the kernel's log in a file of its own, whose clock is another: only when the server is known to have died.
  std::optional<Finding> kernel(const char* cause) {
    for (const Event& e : run_.events) {
      if (!from_dmesg(e) || e.signature->cause != cause) continue;
      if (std::optional<Finding> f = judge(e, c_)) return f;
    }
    return std::nullopt;
  }

  std::optional<Finding> choose() {
    const std::vector<Finding> causes = findings(Kind::kCause), symptoms = findings(Kind::kSymptom);
    std::optional<Finding> best;
    for (const Finding& f : causes) {
      if (survived(*f.event)) continue;
      if (soft(*f.event) && run_.ready.seq > f.event->last_seq && !died()) continue;
      best = f;
      break;
    }
    for (const Finding& f : causes)  // whatever a kernel reported: the GPU itself was gone
      if (best && f.cause == "HW_OR_DRIVER" && (best->cause == "KERNEL_FAULT" || best->cause == "WRONG_TARGET"))
        best = f;
    if (const auto hardware = kernel("HW_OR_DRIVER"); hardware && (died() || best || !symptoms.empty()))
      return hardware;
    const bool killed = best ? best->event->signature->id == "S035" : sigkill();
    if (killed && !best)
      if (const auto oom = kernel("HOST_OOM")) return oom;
    if (best) return best;
    for (const Finding& f : symptoms) {
      if (survived(*f.event)) continue;
      if (f.cause == "NAN_LOGITS")
        for (const Finding& advice : findings(Kind::kAdvice))
          if (advice.cause == "SCALE_MISMATCH" || advice.cause == "TENSOR_UNFILLED") return advice;
      return f;
    }
    if (died())
      for (const char* cause : {"HOST_OOM", "KERNEL_FAULT", "WRONG_TARGET"})
        if (const auto f = kernel(cause)) return f;
    for (const Finding& f : causes)  // one request failed so, and the server lived on
      if (!soft(*f.event) && f.cause != "UNKNOWN" && f.event->place.seq > run_.ready.seq) return f;
    std::optional<Finding> advice;
    for (const Finding& f : findings(Kind::kAdvice))
      if (!dismissed(f) && (!advice || f.confidence > advice->confidence)) advice = f;
    if (advice) return advice;
    for (const Finding& f : findings(Kind::kRequest))
      if (run_.last_success.seq < f.event->last_seq || f.event->signature->need == Need::kClientComplaint) return f;
    for (const Finding& f : findings(Kind::kPlain))
      if (!survived(*f.event) && (died() || run_.ready.seq < f.event->place.seq)) return f;
    return std::nullopt;
  }

  static bool soft(const Event& e) {
    return e.level == Level::kWarn || e.level == Level::kInfo || e.level == Level::kDebug;
  }

  // A warning that did not keep the server from answering.
  bool dismissed(const Finding& f) const {
    if (run_.last_success.seq < f.event->last_seq) return false;
    if (f.cause == "SCALE_MISMATCH" || f.cause == "TENSOR_UNFILLED") return false;  // its answers are wrong ones
    switch (f.event->signature->need) {
      case Need::kSlow:
      case Need::kLongContext:
      case Need::kRepeated:
      case Need::kNoneSurvived:
        return false;
      default:
        return f.confidence < Confidence::kHigh || f.cause == "SLOW_START_COMPILE";
    }
  }

  bool sigkill() const {
    if (options_.exit_code && (*options_.exit_code == 137 || *options_.exit_code == -9)) return true;
    return std::any_of(run_.events.begin(), run_.events.end(), [](const Event& e) { return e.signature->id == "W02"; });
  }

  void from_finding(const Finding& f) {
    const Event& e = *f.event;
    const Signature& s = *e.signature;
    const ClassInfo& info = table_.classes.at(f.cause);
    d_.cause = f.cause;
    d_.signature = s.id;
    d_.rank = e.rank;
    d_.phase = from_dmesg(e) ? run_.phase : e.phase;
    d_.confidence = f.confidence;
    std::string what = f.remark.empty() ? s.tell : f.remark;
    if (const auto at = info.phases.find(d_.phase); at != info.phases.end()) what += "; " + at->second;
    d_.sentence = fmt::format("{}{}.", what, where(d_.phase, d_.rank));
    d_.evidence.push_back(e.place.line);
    support(f);
    if (f.cause == "UNKNOWN") {
      if (!s.remedy.empty()) d_.remedy.push_back(s.remedy);
      return;
    }
    if (!s.remedy.empty() && f.cause == s.cause) d_.remedy.push_back(s.remedy);
    remedies(info);
    if (d_.confidence != Confidence::kHigh) missing(info);
  }

  // Other lines that say the same; they may raise the confidence.
  void support(const Finding& f) {
    bool agreed = false;
    for (const Event& e : run_.events) {
      if (&e == f.event || d_.evidence.size() >= kEvidence || e.signature->cause != f.cause || e.handled || e.probing)
        continue;
      if (!judge(e, c_)) continue;
      agreed = agreed || e.signature != f.event->signature || e.rank != f.event->rank;
      d_.evidence.push_back(e.place.line);
    }
    const bool about_device = f.cause == "WRONG_SM" || f.cause == "GATE_TOO_NARROW" || f.cause == "GATE_OR_TOOLKIT" ||
                              f.cause == "WRONG_TARGET" || f.cause == "SMEM_TOO_SMALL" || f.cause == "TOOLKIT_TOO_OLD";
    if (about_device && options_.device.empty() && all_.device_place.seq > 0)
      d_.evidence.push_back(all_.device_place.line);
    if (about_device && f.event->signature->need == Need::kGateOrToolkit && all_.toolkit_place.seq > 0)
      d_.evidence.push_back(all_.toolkit_place.line);
    if (agreed && d_.confidence == Confidence::kMedium && f.event->signature->need != Need::kSilence &&
        !table_.classes.at(f.cause).disputed)
      d_.confidence = Confidence::kHigh;
  }

  void remedies(const ClassInfo& info) {
    const std::vector<std::string> keys =
        d_.engine.empty() ? std::vector<std::string>{"any@" + d_.phase, "any"}
                          : std::vector<std::string>{d_.engine + "@" + d_.phase, d_.engine, "any@" + d_.phase, "any"};
    for (const std::string& key : keys) {
      const auto at = info.flags.find(key);
      if (at == info.flags.end()) continue;
      for (const std::string& flag : at->second)
        if (on_topic(flag)) d_.remedy.push_back(flag);
      break;
    }
    if (d_.engine.empty() && info.flags.size() > 1)
      d_.missing.push_back("which server this is: none was recognised, so no flags are named");
  }

  // Flags of attention do not help where experts failed, and the other way round.
  bool on_topic(const std::string& flag) const {
    static const Pattern attention("(?i)attention|attn|fmha|\\bmla|mla_"), experts("(?i)moe|expert|fp4|gemm");
    const std::string& line = d_.evidence[0].text;
    const bool about_attention = attention.search(line), about_experts = experts.search(line);
    if (about_attention == about_experts) return true;
    return about_attention ? !experts.search(flag) || attention.search(flag) : !attention.search(flag);
  }

  void missing(const ClassInfo& info) {
    for (const std::string& item : info.missing) {
      if (!c_.device.empty() && item.find("--device") != std::string::npos) continue;
      if (!c_.toolkit.empty() && item.find("nvcc --version") != std::string::npos) continue;
      if (c_.kernel_log && item.find("--dmesg") != std::string::npos) continue;
      d_.missing.push_back(item);
    }
  }

  // Dumps of stacks (faulthandler) have frames without ", in" and no error behind them.
  bool ends_inside_a_traceback() const {
    const uint64_t last = all_.last.seq;
    const bool frame = run_.last_frame.seq == last && run_.last_frame.line.text.find(", in ") != std::string::npos;
    return last > 0 && run_.stopping.seq == 0 && (frame || run_.cut_trace == last);
  }

  // Something is wrong, and no signature says what. False: nothing is wrong.
  bool fault() {
    const Unmatched* first = nullptr;
    for (const Unmatched& u : run_.unmatched) {
      if (run_.last_success.seq > u.place.seq && !died()) continue;
      if (run_.ready.seq > u.place.seq && !died()) continue;
      first = &u;
      break;
    }
    const bool hangs = options_.silent_s && *options_.silent_s >= 60;
    const bool empty = run_.lines == 0 || all_.last.seq == 0;
    const bool no_text = all_.no_text * 2 > all_.looked_at && run_.successes == 0 && run_.ready.seq == 0;
    // Whoever writes a traceback writes its error with it, unless it was killed or the log was cut there.
    const bool cut = ends_inside_a_traceback();
    if (first == nullptr && !died() && !hangs && !empty && !no_text && !cut) return false;
    d_.cause = "UNKNOWN";
    d_.confidence = Confidence::kLow;
    d_.phase = first != nullptr ? first->phase : run_.phase;
    if (first != nullptr) {
      d_.rank = first->rank;
      d_.evidence.push_back(first->place.line);
      d_.sentence = fmt::format("No known cause; the first error stands in line {}{}.", first->place.line.line,
                                where(d_.phase, d_.rank));
    } else if (empty) {
      d_.sentence = "The log is empty.";
    } else if (no_text) {
      d_.sentence = fmt::format("This is no log: {} of the first {} lines hold bytes that no text has.", all_.no_text,
                                all_.looked_at);
    } else if (cut) {
      d_.evidence.push_back(all_.last.line);
      d_.sentence = fmt::format("The log ends inside a traceback{}: the error that it tells of is not there.",
                                where(d_.phase, {}));
    } else if (c_.died_seq > 0) {
      d_.sentence = fmt::format("It died{}, and only lines that follow any failure are here.", where(d_.phase, {}));
    } else if (bad_exit()) {
      d_.sentence =
          fmt::format("It ended with exit code {}{}, and no line says why.", *options_.exit_code, where(d_.phase, {}));
    } else {
      d_.sentence = fmt::format("It is silent{}; no line says what it waits for.", where(d_.phase, {}));
    }
    if (d_.evidence.empty() && hangs && !empty) d_.evidence.push_back(all_.last.line);
    missing(table_.classes.at("UNKNOWN"));
    if (sigkill() && !c_.kernel_log)
      d_.missing.push_back("the kernel log of that hour (--dmesg FILE): who sent SIGKILL is not said");
    if (hangs) d_.missing.push_back("py-spy dump of every process, and nvidia-smi while it hangs");
    return true;
  }

  void healthy() {
    d_.cause = "HEALTHY";
    d_.phase = run_.phase;
    if (run_.successes > 0) {
      d_.confidence = Confidence::kHigh;
      d_.sentence = fmt::format("Nothing is wrong: it answered ({} lines of it).", run_.successes);
      d_.evidence.push_back(run_.first_success.line);
    } else if (run_.ready.seq > 0) {
      d_.confidence = Confidence::kMedium;
      d_.sentence = "Nothing is wrong: it became ready; no request is seen.";
      d_.evidence.push_back(run_.ready.line);
    } else {
      d_.sentence = fmt::format("Nothing is wrong up to the last line{}; it was not ready yet.", where(d_.phase, {}));
      d_.missing.push_back("the lines after it, or how it ended (--exit-code N, --silent SECONDS)");
    }
    if (run_.stopping.seq > 0) d_.sentence += " It ended because it was asked to.";
  }

  bool is_evidence(const Line& line) const {
    return std::any_of(d_.evidence.begin(), d_.evidence.end(),
                       [&](const Line& e) { return e.file == line.file && e.line == line.line; });
  }
  void misleads(Line line, std::string why) {
    const bool known = std::any_of(d_.misleading.begin(), d_.misleading.end(), [&](const Line& m) {
      return m.remark == why || (m.file == line.file && m.line == line.line);
    });
    if (known || is_evidence(line) || d_.misleading.size() >= kEvidence) return;
    line.remark = std::move(why);
    d_.misleading.push_back(std::move(line));
  }

  void misleading() {
    for (const Line& m : run_.misleading) {
      if (m.remark.find("out-of-memory kill") != std::string::npos && c_.kernel_oom) continue;
      misleads(m, m.remark);
    }
    if (d_.healthy()) return;
    for (const Event& e : run_.events)
      if (e.signature->kind == Kind::kWrapper) misleads(e.place.line, e.signature->tell);
    if ((d_.cause == "KERNEL_FAULT" || d_.cause == "WRONG_TARGET") && run_.last_frame.seq > 0)
      misleads(run_.last_frame.line, "where the fault surfaced; it is asynchronous, the guilty kernel ran earlier");
    for (const Unmatched& u : run_.unmatched)
      if (u.place.seq == all_.last.seq)
        misleads(u.place.line, "the last line is what was left when the cause had already happened");
  }

  void note(std::string text) {
    if (d_.notes.size() < kNotes) d_.notes.push_back(std::move(text));
  }

  void notes() {
    if (all_.runs.size() > 1)
      note(fmt::format("the log holds {} starts; this is about the last one, the one before ended with {}",
                       all_.earlier_runs + 2, earlier_cause()));
    std::map<std::string, const Event*> first;  // per row: ranks repeat each other
    std::vector<const Event*> order;
    for (const Event& e : run_.events)
      if (!is_evidence(e.place.line) && e.signature->kind != Kind::kWrapper &&
          first.emplace(e.signature->id, &e).second)
        order.push_back(&e);
    for (const Event* e : order)
      note(fmt::format("{}:{}: {} ({}{})", e->place.line.file, e->place.line.line, e->signature->cause,
                       e->signature->tell, e->count > 1 ? fmt::format(", {} times", e->count) : ""));
    if (d_.healthy() && !run_.unmatched.empty())
      note(fmt::format("{}:{}: an error that it survived", run_.unmatched[0].place.line.file,
                       run_.unmatched[0].place.line.line));
  }

  std::string earlier_cause() const {
    Collected before = all_;
    before.runs.pop_back();
    Options options = options_;
    options.exit_code.reset();
    options.silent_s.reset();
    return classify(before, options, table_).cause;
  }

  const Collected& all_;
  const Run& run_;
  const Options& options_;
  const Table& table_;
  Context c_;
  Diagnosis d_;
};

}  // namespace

Diagnosis classify(const Collected& collected, const Options& options, const Table& table) {
  return Classifier(collected, options, table).answer();
}

}  // namespace mettle::diagnose

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/html.h"
#include "prove/report.h"
#include "prove/report_parts.h"
#include "prove/report_style.h"

namespace mettle {
namespace {

constexpr size_t kBuckets = kRowBuckets.size();

std::string_view what_it_does(std::string_view op) {
  static const std::map<std::string_view, std::string_view> kWords = {
      {"embed", "token ids to rows"},
      {"join", "adds the parts of a layer, then the norm"},
      {"linear", "one product with a weight matrix"},
      {"moe", "router and experts"},
      {"attention", "over the paged cache"},
      {"gdn", "gated delta net, with its state"},
      {"sample", "logits to a token"}};
  const auto at = kWords.find(op);
  return at == kWords.end() ? "" : at->second;
}

std::string count(uint64_t n) {
  if (n >= 10'000'000) return fmt::format("{:.0f} million", static_cast<double>(n) / 1e6);
  if (n >= 1'000'000) return fmt::format("{:.1f} million", static_cast<double>(n) / 1e6);
  return n >= 10'000 ? fmt::format("{}\u202F{:03}", n / 1000, n % 1000) : fmt::format("{}", n);
}

std::string of_many(size_t n, std::string_view one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); }

std::string duration(double us) {
  if (us < 1) return fmt::format("{:.2f}\u202Fµs", us);
  if (us < 10) return fmt::format("{:.1f}\u202Fµs", us);
  if (us < 1000) return fmt::format("{:.0f}\u202Fµs", us);
  if (us < 10'000) return fmt::format("{:.1f}\u202Fms", us / 1e3);
  return us < 1e6 ? fmt::format("{:.0f}\u202Fms", us / 1e3) : fmt::format("{:.1f}\u202Fs", us / 1e6);
}

// A long name may be broken behind its slash.
std::string breakable(std::string_view name) {
  std::string text = html_text(name);
  for (size_t at = text.find('/'); at != std::string::npos; at = text.find('/', at + 1)) text.insert(at + 1, "<wbr>");
  return text;
}

std::string rate(double x) { return x < 10 ? fmt::format("{:.1f}", x) : fmt::format("{:.0f}", x); }

// "17–256": the row counts of these neighbours.
std::string rows_of(size_t first, size_t last) {
  const int from = first == 0 ? 1 : kRowBuckets[first - 1] + 1, to = kRowBuckets[last];
  if (last + 1 == kBuckets) return fmt::format("{}+", from);
  return from == to ? fmt::format("{}", from) : fmt::format("{}–{}", from, to);
}

class Page {
 public:
  explicit Page(const ReportPage& page) : page_(page), report_(page.report) {
    for (const ProofEntry& e : report_.entries) {
      ++states_[static_cast<size_t>(state_of(e))];
      comparisons_ += e.comparisons;
      cases_ += static_cast<size_t>(e.cases);
      if (std::find(ops_.begin(), ops_.end(), e.op) == ops_.end()) ops_.push_back(e.op);
      if (std::find(problems_.begin(), problems_.end(), e.problem) == problems_.end()) problems_.push_back(e.problem);
    }
  }

  std::string text() {
    head();
    summary();
    serving();
    attention();
    for (const std::string& op : ops_) section(op);
    legend();
    out_ += "</main>\n</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  template <class... A>
  void put(fmt::format_string<A...> f, A&&... a) {
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(a)...);
  }
  size_t number(ProofState s) const { return states_[static_cast<size_t>(s)]; }

  const ServingChoice* choice_of(const std::string& problem) const {
    for (const ServingChoice& c : page_.choices)
      if (c.problem == problem) return &c;
    return nullptr;
  }
  bool served(const std::string& problem) const {
    return std::any_of(report_.entries.begin(), report_.entries.end(),
                       [&](const ProofEntry& e) { return e.problem == problem && e.verdict.ok(); });
  }

  void head() {
    const std::string title =
        page_.model.empty() ? report_.device : fmt::format("{} on {}", page_.model, report_.device);
    put("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        "<meta name=\"referrer\" content=\"no-referrer\">\n<title>Proofs: {}</title>\n<style>\n{}</style>\n</head>\n"
        "<body>\n<main style=\"--buckets:{}\">\n",
        html_text(title, 200), kReportStyle, kBuckets);
  }

  void summary() {
    const size_t bare = static_cast<size_t>(
        std::count_if(problems_.begin(), problems_.end(), [&](const auto& p) { return !served(p); }));
    const size_t all = report_.entries.size(), fit = all - number(ProofState::kRefused);
    const bool well = all > 0 && number(ProofState::kFailed) == 0 && bare == 0;
    std::string line;
    if (all == 0)
      line = "Nothing was to be proved.";
    else if (well)
      line = "Every backend that fits this device computes what the float64 code says, within what rounding explains.";
    else if (number(ProofState::kFailed) > 0)
      line = fmt::format("{} failed and {} not serve.", of_many(number(ProofState::kFailed), "tactic"),
                         number(ProofState::kFailed) == 1 ? "does" : "do");
    if (bare > 0)
      line += fmt::format("{}{} {} no proved backend.", line.empty() ? "" : " ", of_many(bare, "problem"),
                          bare == 1 ? "has" : "have");
    put("<header class=\"{}\">\n<p class=\"brand\">mettle <b>prove</b></p>\n<h1>{} of {} proved</h1>\n<p "
        "class=\"lead\">{}</p>\n<dl class=\"facts\">\n",
        well ? "well" : "unwell", number(ProofState::kProved), fit, line);
    fact("model", page_.architecture.empty() ? page_.model : fmt::format("{} ({})", page_.model, page_.architecture));
    fact("device", report_.where.name == report_.device || report_.where.name.empty()
                       ? report_.device
                       : fmt::format("{} ({})", report_.device, report_.where.name));
    std::string isas;
    for (const Isa isa : report_.where.isas) isas += fmt::format("{}{}", isas.empty() ? "" : " ", name_of(isa));
    fact("instruction sets", isas);
    fact("driver", report_.where.driver);
    fact("program", page_.program);
    fact("build", report_.build);
    if (page_.ceiling.has_value()) fact("ceiling", ceiling_words(*page_.ceiling));
    fact("made", page_.made);
    put("</dl>\n</header>\n<ul class=\"tiles\">\n");
    tile(fmt::format("{}", number(ProofState::kProved)), "proved", "ok");
    tile(fmt::format("{}", number(ProofState::kRefused)), "do not fit here",
         number(ProofState::kRefused) > 0 ? "refused" : "");
    tile(fmt::format("{}", number(ProofState::kFailed)), "failed", number(ProofState::kFailed) > 0 ? "failed" : "");
    tile(count(comparisons_), "elements compared", "");
    tile(fmt::format("{}", cases_), "cases", "");
    tile(fmt::format("{:.1f}\u202Fs", page_.seconds),
         fmt::format("on {}", of_many(static_cast<size_t>(page_.threads), "thread")), "");
    put("</ul>\n");
  }

  static std::string ceiling_words(const Ceiling& c) {
    std::string words;
    if (!c.reads.empty()) words = fmt::format("reads {} GB/s from memory", rate(c.reads.back().gbs));
    if (c.reads.size() > 1) words += fmt::format(", {} GB/s from caches", rate(c.reads.front().gbs));
    for (const MathRate& m : c.math) words += fmt::format(", {} {} GFLOP/s", m.name, rate(m.gflops));
    return words;
  }

  void fact(std::string_view name, std::string_view value) {
    if (!value.empty()) put("<div><dt>{}</dt><dd>{}</dd></div>\n", name, html_text(value, 300));
  }
  void tile(std::string_view figure, std::string_view words, std::string_view style) {
    put("<li class=\"{}\"><b>{}</b> {}</li>\n", style, figure, words);
  }

  // Which tactic serves how many rows: a band of neighbours with one choice.
  void serving() {
    if (problems_.empty()) return;
    put("<section>\n<h2>What serves</h2>\n<p class=\"note\">The fastest proved tactic for each number of rows in a "
        "step.</p>\n<div class=\"bands\">\n<div class=\"band heads\" aria-hidden=\"true\"><span>rows</span>");
    for (size_t b = 0; b < kBuckets; ++b) put("<span>{}</span>", rows_of(b, b));
    put("</div>\n");
    for (const std::string& problem : problems_) {
      const std::string& op = op_of(problem);
      put("<div class=\"band\"><a href=\"#{}\">{}</a>", html_text(op), html_text(problem));
      const ServingChoice* c = choice_of(problem);
      std::vector<std::string> names;  // backends in the order they come up: a shade each
      for (size_t b = 0; b < kBuckets;) {
        size_t end = b + 1;
        const auto same = [&](size_t i) {
          return c == nullptr || (c->backend[i] == c->backend[b] && c->tactic[i] == c->tactic[b]);
        };
        while (end < kBuckets && same(end)) ++end;
        const std::string backend = c == nullptr ? "" : c->backend[b];
        const auto at = std::find(names.begin(), names.end(), backend);
        const auto shade = static_cast<size_t>(at - names.begin());
        if (at == names.end()) names.push_back(backend);
        const std::string rows = rows_of(b, end - 1);
        put("<span class=\"{}\" style=\"--n:{}\"><i>{}</i><b>{}</b> <small>{}</small></span>",
            backend.empty() ? "none" : fmt::format("s{}", shade % 4), end - b, rows + (rows == "1" ? " row" : " rows"),
            backend.empty() ? "nothing proved" : html_text(backend), c == nullptr ? "" : breakable(c->tactic[b]));
        b = end;
      }
      put("</div>\n");
    }
    put("</div>\n</section>\n");
  }

  const std::string& op_of(const std::string& problem) const {
    for (const ProofEntry& e : report_.entries)
      if (e.problem == problem) return e.op;
    return problem;
  }

  // Failures first, then refusals. Who meets the same shares a card; in it, tactics of one backend share a line.
  void attention() {
    struct Line {
      const ProofEntry* first;
      std::vector<std::string> tactics, problems;
    };
    struct Card {
      const ProofEntry* first;
      std::vector<Line> lines;
    };
    std::vector<Card> failed, refused;
    for (const ProofEntry& e : report_.entries) {
      if (e.verdict.ok()) continue;
      const Verdict& v = e.verdict;
      std::vector<Card>& cards = state_of(e) == ProofState::kFailed ? failed : refused;
      auto card = std::find_if(cards.begin(), cards.end(), [&](const Card& c) {
        const Verdict& other = c.first->verdict;
        return other.code == v.code && other.sentence == v.sentence && other.remedy == v.remedy;
      });
      if (card == cards.end()) card = cards.insert(cards.end(), Card{&e, {}});
      auto line = std::find_if(card->lines.begin(), card->lines.end(), [&](const Line& l) {
        const ProofEntry& other = *l.first;
        return other.op == e.op && other.backend == e.backend && other.verdict.have == v.have &&
               other.verdict.need == v.need;
      });
      if (line == card->lines.end()) line = card->lines.insert(card->lines.end(), Line{&e, {}, {}});
      const auto note = [](std::vector<std::string>& list, const std::string& name) {
        if (!name.empty() && std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
      };
      note(line->tactics, e.tactic);
      note(line->problems, e.problem);
    }
    put("<section>\n<h2>Refused and failed</h2>\n");
    if (failed.empty() && refused.empty()) put("<p class=\"note\">Nothing failed, and nothing was refused.</p>\n");
    for (const std::vector<Card>* cards : {&failed, &refused})
      for (const Card& card : *cards) {
        const Verdict& v = card.first->verdict;
        put("<article class=\"card {}\">\n<h3><span class=\"code\">{}</span> {}</h3>\n",
            class_of(state_of(*card.first)), name_of(v.code), html_text(v.sentence));
        if (!v.remedy.empty()) put("<p class=\"remedy\">{}</p>\n", html_text(v.remedy));
        put("<ul>\n");
        for (const Line& l : card.lines) {
          const Verdict& own = l.first->verdict;
          put("<li><b>{} {}</b> {}", html_text(l.first->op), html_text(l.first->backend),
              html_text(fmt::format("{}", fmt::join(l.tactics, ", "))));
          if (!own.have.empty() || !own.need.empty())
            put("<span class=\"values\">have <b>{}</b>, need <b>{}</b></span>", html_text(own.have),
                html_text(own.need));
          put("<small>{}</small></li>\n", html_text(fmt::format("{}", fmt::join(l.problems, " · "))));
        }
        put("</ul>\n</article>\n");
      }
    put("</section>\n");
  }

  void section(const std::string& op) {
    std::vector<const ProofEntry*> entries;
    uint64_t comparisons = 0;
    int cases = 0;
    for (const ProofEntry& e : report_.entries) {
      if (e.op != op) continue;
      entries.push_back(&e);
      comparisons += e.comparisons;
      cases += e.cases;
    }
    put("<section id=\"{0}\" class=\"op\">\n<h2>{0} <small>{1}</small></h2>\n<p class=\"note\">{2} elements compared "
        "in "
        "{3} of {4}</p>\n",
        html_text(op), what_it_does(op), count(comparisons), of_many(static_cast<size_t>(cases), "case"),
        of_many(entries.size(), "tactic"));
    out_ += distance_plot(entries);
    for (const std::string& problem : problems_)
      if (op_of(problem) == op) matrix(problem);
    put("</section>\n");
  }

  void matrix(const std::string& problem) {
    put("<p class=\"problem\">{}</p>\n<table>\n<thead><tr><th scope=\"col\">tactic</th><th scope=\"col\">verdict</th>",
        html_text(problem));
    for (const int rows : kRowBuckets) put("<th scope=\"col\">{} row{}</th>", rows, rows == 1 ? "" : "s");
    put("</tr></thead>\n<tbody>\n");
    const ServingChoice* c = choice_of(problem);
    for (const ProofEntry& e : report_.entries) {
      if (e.problem != problem) continue;
      const ProofState state = state_of(e);
      put("<tr class=\"{}\"><th scope=\"row\">{} <small>{}</small></th><td class=\"verdict\"><span "
          "class=\"code\">{}</span>",
          class_of(state), html_text(e.backend), html_text(e.tactic), name_of(e.verdict.code));
      if (e.comparisons > 0) put(" <small>{} of {:g} σ</small>", sigmas_text(e.max_error), e.bound);
      put("</td>");
      for (size_t b = 0; b < kBuckets; ++b) {
        const bool chosen = c != nullptr && c->backend[b] == e.backend && c->tactic[b] == e.tactic;
        cell(e, b, chosen);
      }
      put("</tr>\n");
    }
    put("</tbody>\n");
    if (page_.ceiling.has_value() && c != nullptr) against_ceiling(*c);
    put("</table>\n");
  }

  std::optional<Roof> roof_at(const ProofEntry& e, size_t b) const {
    if (!page_.ceiling.has_value() || !(e.us[b] > 0)) return {};
    for (const AnyProblem& p : page_.problems)
      if (text_of(p) == e.problem) return roof_of(p, kRowBuckets[b], e.us[b], *page_.ceiling, report_.where);
    return {};
  }

  // What the tactics that serve reach: bytes and operations per second, and how near the roof that is.
  void against_ceiling(const ServingChoice& c) {
    std::array<std::optional<Roof>, kBuckets> roofs;
    for (size_t b = 0; b < kBuckets; ++b)
      if (const ProofEntry* e = report_.find(c.problem, c.backend[b], c.tactic[b]); e != nullptr)
        roofs[b] = roof_at(*e, b);
    if (std::none_of(roofs.begin(), roofs.end(), [](const auto& r) { return r.has_value(); })) return;
    put("<tfoot>\n");
    const auto row = [&](std::string_view name, const auto& figure) {
      put("<tr><th scope=\"row\" colspan=\"2\">{}</th>", name);
      for (size_t b = 0; b < kBuckets; ++b)
        put("<td class=\"us\" data-rows=\"{}\">{}</td>", kRowBuckets[b],
            roofs[b].has_value() ? figure(*roofs[b]) : "–");
      put("</tr>\n");
    };
    row("what serves, GB/s", [](const Roof& r) { return rate(r.gbs); });
    row("GFLOP/s", [](const Roof& r) { return rate(r.gflops); });
    row("nearest ceiling",
        [](const Roof& r) { return fmt::format("{:.0f}\u202F% {}", 100 * r.part, r.by_memory ? "mem" : "math"); });
    put("</tfoot>\n");
  }

  void cell(const ProofEntry& e, size_t b, bool chosen) {
    const std::string rows = fmt::format("data-rows=\"{}\"", kRowBuckets[b]);
    if (!e.verdict.ok() || !(e.us[b] > 0)) {
      put("<td class=\"us{}\" {}>{}</td>", chosen ? " chosen" : "", rows, chosen ? "serves" : "–");
      return;
    }
    put("<td class=\"us{}\" {}>{}", chosen ? " chosen" : "", rows, duration(e.us[b]));
    if (const std::optional<Roof> roof = roof_at(e, b))
      put("<small class=\"share\" style=\"--share:{:.3f}\">{:.0f}\u202F%</small>", std::min(roof->part, 1.0),
          100 * roof->part);
    put("</td>");
  }

  void legend() {
    put("<section class=\"legend\">\n<h2>How to read this</h2>\n<p>A backend serves only after its output was compared "
        "with float64 code on this device, at this model's shapes, in a process of its own. A dot is the worst element "
        "of a tactic: how many sigmas of rounding errors it takes to explain it, of 10 allowed. A ring is the worst of "
        "the statistics over columns, rows and blocks, in parts of its limit. Nothing right of the line serves.</p>\n"
        "<p>Times are the least of several calls. <span class=\"key\">Filled</span> cells serve; a dash was not timed: "
        "it was refused, it failed, or it was far behind at fewer rows.{}</p>\n</section>\n",
        page_.ceiling.has_value() ? " The percentages are parts of the ceiling: the least time that this machine's "
                                    "memory and arithmetic allow, over the time that was taken."
                                  : "");
  }

  const ReportPage& page_;
  const ProofReport& report_;
  std::string out_;
  size_t states_[3] = {};
  uint64_t comparisons_ = 0;
  size_t cases_ = 0;
  std::vector<std::string> ops_, problems_;
};

}  // namespace

std::string report_html(const ReportPage& page) { return Page(page).text(); }

}  // namespace mettle

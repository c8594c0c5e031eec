#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "prove/report.h"
#include "prove/report_style.h"

namespace mettle {
namespace {

constexpr size_t kBuckets = kRowBuckets.size();

enum class State { kProved, kRefused, kFailed };

State state_of(const ProofEntry& e) {
  if (e.verdict.ok()) return State::kProved;
  return info_of(e.verdict.code).refusal && e.verdict.code != VerdictCode::kUnproved ? State::kRefused : State::kFailed;
}
std::string_view class_of(State s) { return s == State::kProved ? "ok" : s == State::kRefused ? "refused" : "failed"; }

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
  if (us < 10) return fmt::format("{:.1f}\u202Fµs", us);
  if (us < 1000) return fmt::format("{:.0f}\u202Fµs", us);
  if (us < 10'000) return fmt::format("{:.1f}\u202Fms", us / 1e3);
  return us < 1e6 ? fmt::format("{:.0f}\u202Fms", us / 1e3) : fmt::format("{:.1f}\u202Fs", us / 1e6);
}

std::string sigmas(double x) {
  if (x == 0) return "0";
  if (x < 0.01) return "&lt;\u202F0.01";
  if (x < 10) return fmt::format("{:.2g}", x);
  return x < 1e5 ? fmt::format("{:.0f}", x) : x < 1e29 ? fmt::format("{:.0e}", x) : "∞";
}

std::string rows_of_bucket(size_t b) {
  const int from = b == 0 ? 1 : kRowBuckets[b - 1] + 1;
  return b + 1 == kBuckets        ? fmt::format("{}+", from)
         : from == kRowBuckets[b] ? fmt::format("{}", from)
                                  : fmt::format("{}–{}", from, kRowBuckets[b]);
}

// Part of what is allowed -> percent of the plot's width: up to the line in proportion, beyond it by powers of ten.
constexpr double kLeft = 1.5, kLine = 72, kRight = 98.5, kDecades = 6;
double place(double part) {
  if (!(part > 1)) return kLeft + (kLine - kLeft) * std::max(part, 0.0);
  return kLine + (kRight - kLine) * std::min(std::log10(part) / kDecades, 1.0);
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
  size_t number(State s) const { return states_[static_cast<size_t>(s)]; }

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
        "<body>\n<main>\n",
        html_text(title, 200), kReportStyle);
  }

  void summary() {
    const size_t bare = static_cast<size_t>(
        std::count_if(problems_.begin(), problems_.end(), [&](const auto& p) { return !served(p); }));
    const size_t all = report_.entries.size(), fit = all - number(State::kRefused);
    const bool well = all > 0 && number(State::kFailed) == 0 && bare == 0;
    std::string line;
    if (all == 0)
      line = "Nothing was to be proved.";
    else if (well)
      line = "Every backend that fits this device computes what the float64 code says, within what rounding explains.";
    else if (number(State::kFailed) > 0)
      line = fmt::format("{} failed and {} not serve.", of_many(number(State::kFailed), "tactic"),
                         number(State::kFailed) == 1 ? "does" : "do");
    if (bare > 0)
      line += fmt::format("{}{} {} no proved backend.", line.empty() ? "" : " ", of_many(bare, "problem"),
                          bare == 1 ? "has" : "have");
    put("<header class=\"{}\">\n<p class=\"brand\">mettle <b>prove</b></p>\n<h1>{} of {} proved</h1>\n<p "
        "class=\"lead\">{}</p>\n<dl class=\"facts\">\n",
        well ? "well" : "unwell", number(State::kProved), fit, line);
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
    fact("ceiling", page_.ceiling);
    fact("made", page_.made);
    put("</dl>\n</header>\n<ul class=\"tiles\">\n");
    tile(fmt::format("{}", number(State::kProved)), "proved", "ok");
    tile(fmt::format("{}", number(State::kRefused)), "do not fit here", number(State::kRefused) > 0 ? "refused" : "");
    tile(fmt::format("{}", number(State::kFailed)), "failed", number(State::kFailed) > 0 ? "failed" : "");
    tile(count(comparisons_), "elements compared", "");
    tile(fmt::format("{}", cases_), "cases", "");
    tile(fmt::format("{:.1f}\u202Fs", page_.seconds),
         fmt::format("on {}", of_many(static_cast<size_t>(page_.threads), "thread")), "");
    put("</ul>\n");
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
    for (size_t b = 0; b < kBuckets; ++b) put("<span>{}</span>", rows_of_bucket(b));
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
        const std::string first = rows_of_bucket(b), last = rows_of_bucket(end - 1);
        const std::string from = first.substr(0, first.find("–"));
        const size_t dash = last.find("–");
        const std::string range =
            end == kBuckets ? from + "+" : from + "–" + (dash == std::string::npos ? last : last.substr(dash + 3));
        put("<span class=\"{}\" style=\"--n:{}\"><i>{} rows</i><b>{}</b> <small>{}</small></span>",
            backend.empty() ? "none" : fmt::format("s{}", shade % 4), end - b, end == b + 1 ? first : range,
            backend.empty() ? "nothing proved" : html_text(backend), c == nullptr ? "" : html_text(c->tactic[b]));
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

  // Failures first, then refusals; tactics of one backend that meet the same share a card.
  void attention() {
    struct Group {
      const ProofEntry* first;
      std::vector<std::string> tactics, problems;
    };
    std::map<int, std::vector<Group>> by_kind;
    for (const ProofEntry& e : report_.entries) {
      if (e.verdict.ok()) continue;
      std::vector<Group>& groups = by_kind[state_of(e) == State::kFailed ? 0 : 1];
      const auto same = [&](const Group& g) {
        const Verdict &a = g.first->verdict, &b = e.verdict;
        return g.first->op == e.op && g.first->backend == e.backend && a.code == b.code && a.have == b.have &&
               a.need == b.need && a.sentence == b.sentence && a.remedy == b.remedy;
      };
      auto at = std::find_if(groups.begin(), groups.end(), same);
      if (at == groups.end()) at = groups.insert(groups.end(), Group{&e, {}, {}});
      const auto note = [](std::vector<std::string>& list, const std::string& name) {
        if (!name.empty() && std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
      };
      note(at->tactics, e.tactic);
      note(at->problems, e.problem);
    }
    put("<section>\n<h2>Refused and failed</h2>\n");
    if (by_kind.empty()) put("<p class=\"note\">Nothing failed, and nothing was refused.</p>\n");
    for (const auto& [kind, groups] : by_kind)
      for (const Group& g : groups) {
        const Verdict& v = g.first->verdict;
        put("<article class=\"card {}\">\n<h3><span class=\"code\">{}</span> {} {} <small>{}</small></h3>\n<p>{}</p>\n",
            class_of(state_of(*g.first)), name_of(v.code), html_text(g.first->op), html_text(g.first->backend),
            html_text(fmt::format("{}", fmt::join(g.tactics, ", "))), html_text(v.sentence));
        if (!v.have.empty() || !v.need.empty())
          put("<p class=\"values\">have <b>{}</b>, need <b>{}</b></p>\n", html_text(v.have), html_text(v.need));
        if (!v.remedy.empty()) put("<p class=\"remedy\">{}</p>\n", html_text(v.remedy));
        put("<p class=\"problem\">{}</p>\n</article>\n", html_text(fmt::format("{}", fmt::join(g.problems, " · "))));
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
    plot(entries);
    for (const std::string& problem : problems_)
      if (op_of(problem) == op) matrix(problem);
    put("</section>\n");
  }

  // A lane per backend: where its tactics lie between nothing and the line, and how far beyond it.
  void plot(const std::vector<const ProofEntry*>& entries) {
    std::vector<std::string> backends;
    for (const ProofEntry* e : entries)
      if (e->comparisons > 0 && std::find(backends.begin(), backends.end(), e->backend) == backends.end())
        backends.push_back(e->backend);
    if (backends.empty()) return;
    constexpr int kLane = 38, kTop = 18, kDots = 27;
    const int height = kTop + kLane * static_cast<int>(backends.size()) + 4;
    put("<figure>\n<svg width=\"100%\" height=\"{}\" role=\"img\" aria-label=\"Worst errors of {} in parts of what is "
        "allowed\">\n<rect class=\"wrong\" x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\"/>\n",
        height, html_text(entries.front()->op), kLine, kTop, 100 - kLine, height - kTop);
    for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0, 100.0, 1e4})
      put("<line class=\"{0}\" x1=\"{1:.2f}%\" x2=\"{1:.2f}%\" y1=\"{2}\" y2=\"{3}\"/>\n", part == 1 ? "limit" : "grid",
          place(part), kTop, height);
    for (const auto& [part, words] : {std::pair{0.0, "0"}, {0.5, "50 %"}, {1.0, "the line"}, {1e4, "10⁴ times"}})
      put("<text class=\"axis\" x=\"{:.2f}%\" y=\"12\" text-anchor=\"{}\">{}</text>\n", place(part),
          part == 0   ? "start"
          : part == 1 ? "middle"
                      : "middle",
          words);
    int y = kTop;
    for (const std::string& backend : backends) {
      double worst = -1;
      const ProofEntry* of = nullptr;
      std::string rings, dots;
      for (const ProofEntry* e : entries) {
        if (e->backend != backend || e->comparisons == 0) continue;
        const double part = e->bound > 0 ? e->max_error / e->bound : 0;
        if (part > worst) worst = part, of = e;
        const std::string_view style = class_of(state_of(*e));
        if (e->group_error > 0)
          rings += fmt::format(
              "<circle class=\"ring {}\" cx=\"{:.2f}%\" cy=\"{}\" r=\"4\"><title>{}: worst group at "
              "{:.0f} % of its limit</title></circle>\n",
              style, place(e->group_error), y + kDots, html_text(e->tactic), 100 * std::min(e->group_error, 1e6));
        dots += fmt::format(
            "<circle class=\"dot {}\" cx=\"{:.2f}%\" cy=\"{}\" r=\"4.5\"><title>{}: {} of {:g} "
            "sigmas</title></circle>\n",
            style, place(part), y + kDots, html_text(e->tactic), sigmas(e->max_error), e->bound);
      }
      put("<line class=\"lane\" x1=\"{}%\" x2=\"{}%\" y1=\"{}\" y2=\"{}\"/>\n", kLeft, kRight, y + kDots, y + kDots);
      out_ += rings + dots;
      put("<text class=\"name\" x=\"{}%\" y=\"{}\">{} <tspan class=\"axis\">{} of {:g} σ, {}</tspan></text>\n", kLeft,
          y + 15, html_text(backend, 40), sigmas(of->max_error), of->bound, html_text(of->tactic, 40));
      y += kLane;
    }
    put("</svg>\n</figure>\n");
  }

  void matrix(const std::string& problem) {
    put("<p class=\"problem\">{}</p>\n<table>\n<thead><tr><th scope=\"col\">tactic</th><th scope=\"col\">verdict</th>",
        html_text(problem));
    for (const int rows : kRowBuckets) put("<th scope=\"col\">{} row{}</th>", rows, rows == 1 ? "" : "s");
    put("</tr></thead>\n<tbody>\n");
    const ServingChoice* c = choice_of(problem);
    for (const ProofEntry& e : report_.entries) {
      if (e.problem != problem) continue;
      const State state = state_of(e);
      put("<tr class=\"{}\"><th scope=\"row\">{} <small>{}</small></th><td class=\"verdict\"><span "
          "class=\"code\">{}</span>",
          class_of(state), html_text(e.backend), html_text(e.tactic), name_of(e.verdict.code));
      if (e.comparisons > 0) put(" <small>{} of {:g} σ</small>", sigmas(e.max_error), e.bound);
      put("</td>");
      for (size_t b = 0; b < kBuckets; ++b) {
        const bool chosen = c != nullptr && c->backend[b] == e.backend && c->tactic[b] == e.tactic;
        cell(e, b, chosen);
      }
      put("</tr>\n");
    }
    put("</tbody>\n</table>\n");
  }

  void cell(const ProofEntry& e, size_t b, bool chosen) {
    const std::string rows = fmt::format("data-rows=\"{}\"", kRowBuckets[b]);
    if (!e.verdict.ok() || !(e.us[b] > 0)) {
      put("<td class=\"us{}\" {}>{}</td>", chosen ? " chosen" : "", rows, chosen ? "serves" : "–");
      return;
    }
    put("<td class=\"us{}\" {}>{}", chosen ? " chosen" : "", rows, duration(e.us[b]));
    if (page_.share) {
      const CeilingShare share = page_.share(e, b);
      const bool memory = share.bytes >= share.flops;
      const double most = std::max(share.bytes, share.flops);
      if (most > 0)
        put("<small class=\"share\" title=\"{:.1f} % of the bytes per second, {:.1f} % of the operations per second "
            "that "
            "this machine reaches\" style=\"--share:{:.3f}\">{:.0f}\u202F% {}</small>",
            100 * share.bytes, 100 * share.flops, std::min(most, 1.0), 100 * most, memory ? "mem" : "ops");
    }
    put("</td>");
  }

  void legend() {
    put("<section class=\"legend\">\n<h2>How to read this</h2>\n<p>A backend serves only after its output was compared "
        "with float64 code on this device, at this model's shapes, in a process of its own. A dot is the worst element "
        "of a tactic: how many sigmas of rounding errors it takes to explain it, of 10 allowed. A ring is the worst of "
        "the statistics over columns, rows and blocks, in parts of its limit. Nothing right of the line serves.</p>\n"
        "<p>Times are the least of several calls. <span class=\"key\">Filled</span> cells serve; a dash was not timed: "
        "it was refused, it failed, or it was far behind at fewer rows.</p>\n</section>\n");
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

#include "diagnose/guarded_patterns.h"

#include <cctype>
#include <string>

namespace mettle::diagnose {
namespace {

using std::string_view;

struct Word {
  Guard guard;
  const char* text;
};

// One of these, in any case, occurs wherever its pattern matches; needles have three bytes or more, so that the word
// "no" of remarks is looked for apart.
constexpr Word kWords[] = {
    {Guard::kEcho, "received request"},
    {Guard::kEcho, "prompt"},
    {Guard::kEcho, "messages"},
    {Guard::kEcho, "content"},
    {Guard::kEcho, "text"},
    {Guard::kEcho, "user"},
    {Guard::kEcho, "obj="},
    {Guard::kRemark, "hint"},
    {Guard::kRemark, "tip"},
    {Guard::kRemark, "note"},
    {Guard::kRemark, "usage"},
    {Guard::kRemark, "help"},
    {Guard::kRemark, "example"},
    {Guard::kRemark, "doc"},
    {Guard::kRemark, "if you "},
    {Guard::kRemark, "known issue"},
    {Guard::kRemark, "without"},
    {Guard::kRemark, "never"},
    {Guard::kRemark, "zero"},
    {Guard::kRemark, "avoid"},
    {Guard::kRemark, "prevent"},
    {Guard::kRemark, "fix"},
    {Guard::kRemark, "simulat"},
    {Guard::kRemark, "grep"},
    {Guard::kRemark, "watch"},
    {Guard::kRemark, "look"},
    {Guard::kRemark, "search"},
    {Guard::kRemark, "check"},
    {Guard::kRemark, "in case of"},
    {Guard::kRemark, "unlike"},
    {Guard::kRemark, "such as"},
    {Guard::kRemark, "about"},
    {Guard::kRemark, "mention"},
    {Guard::kHandled, "fall"},
    {Guard::kHandled, "skipp"},
    {Guard::kHandled, "retry"},
    {Guard::kHandled, "ignor"},
    {Guard::kHandled, "recovered"},
    {Guard::kHandled, "disabling"},
    {Guard::kProbing, "tactic"},
    {Guard::kProbing, "while profiling"},
    {Guard::kNamedRank, "rank"},
    {Guard::kNamedRank, "tp0"},
    {Guard::kNamedRank, "tp1"},
    {Guard::kNamedRank, "tp2"},
    {Guard::kNamedRank, "tp3"},
    {Guard::kNamedRank, "tp4"},
    {Guard::kNamedRank, "tp5"},
    {Guard::kNamedRank, "tp6"},
    {Guard::kNamedRank, "tp7"},
    {Guard::kNamedRank, "tp8"},
    {Guard::kNamedRank, "tp9"},
};

const NeedleScanner& words() {
  static const NeedleScanner scanner([] {
    std::vector<std::string> texts;
    for (const Word& word : kWords) texts.emplace_back(word.text);
    return texts;
  }());
  return scanner;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool holds_no(string_view s) {
  for (size_t at = 1; at < s.size(); ++at)
    if ((s[at] | 0x20) == 'o' && (s[at - 1] | 0x20) == 'n' && (at == 1 || !is_word(s[at - 2])) &&
        (at + 1 == s.size() || !is_word(s[at + 1])))
      return true;
  return false;
}

}  // namespace

const Pattern& pattern_of(Guard guard) {
  static const Pattern patterns[kGuards] = {
      Pattern(
          R"((?i)received request|\b(prompt|messages|content|input_text|text|user)['"]? ?[:=] ?['"\[]|obj=\w*GenerateReqInput)"),
      Pattern(
          R"((?i)^\W*(hint|tip|note|notes|usage|help|example|docs?)\b|\bif you (see|get|encounter|hit|run into)\b|\bknown issue|\b(no|without|never|zero|avoids?|prevents?|fix(es|ed)?|simulat\w+|grep(ping)?|watch(ing|es)? for|look(ing)? for|search(ing)? for|checks? for|in case of|unlike|such as|about|mentions?)\b\W*(\w+\W+){0,2}$)"),
      Pattern(
          R"((?i)\b(falling back|fall back|fallback to|skipping|skipped|retrying|will retry|retry \d|ignored|ignoring|recovered|disabling)\b)"),
      Pattern(R"((?i)skipping tactic|while profiling|tactic .{0,60}(failed|skipp))"),
      Pattern(R"((?i)\b(?:local_)?rank ?[:=]? ?(\d+)\b|\bTP(\d+)\b)"),
  };
  return patterns[static_cast<size_t>(guard)];
}

GuardedPatterns::GuardedPatterns() : scanner_(words()) {}

void GuardedPatterns::begin(string_view line) {
  line_ = line;
  scanned_ = false;
}

bool GuardedPatterns::search(Guard guard, string_view part, std::vector<string_view>* groups) {
  if (!scanned_) {
    scanned_ = true;
    possible_.fill(false);
    hits_.clear();
    scanner_.scan(line_, hits_);
    for (const NeedleHit& hit : hits_) possible_[static_cast<size_t>(kWords[hit.needle].guard)] = true;
  }
  const bool possible = possible_[static_cast<size_t>(guard)] || (guard == Guard::kRemark && holds_no(part));
  return possible && pattern_of(guard).search(part, groups);
}

}  // namespace mettle::diagnose

#include "text/reply_parser.h"

#include <algorithm>

#include "text/tool_call.h"

namespace mettle {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>", kFunction = "<function=";
constexpr std::string_view kSpace = " \t\r\n";

// How many bytes at the end of the text may be the beginning of the tag.
size_t cut_tag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(tag.size() - 1, text.size()); n > 0; n--) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

bool prompt_opens_reasoning(std::string_view prompt) {
  const size_t open = prompt.rfind(kThink);
  if (open == std::string_view::npos) return false;
  const std::string_view rest = prompt.substr(open);
  // Behind a marker of the template (<|im_end|>, <|assistant|>) it was text of an earlier turn.
  return rest.find(kThinkEnd) == std::string_view::npos && rest.find("<|") == std::string_view::npos;
}

ReplyParser::ReplyParser(ReplyParserOptions options)
    : options_(std::move(options)), part_(options_.starts_in_reasoning ? Part::kReasoning : Part::kStart) {}

ReplyDelta ReplyParser::push(std::string_view text) {
  held_ += text;
  ReplyDelta out;
  run(out, false);
  return out;
}

ReplyDelta ReplyParser::finish() {
  ReplyDelta out;
  run(out, true);
  return out;
}

void ReplyParser::run(ReplyDelta& out, bool last) {
  while (advance(out, last)) {
  }
  held_.erase(0, at_);
  body_ -= std::min(body_, at_);
  searched_ -= std::min(searched_, at_);
  at_ = 0;
}

// One step: gives on what is decided. False when nothing more can be told before the next text.
bool ReplyParser::advance(ReplyDelta& out, bool last) {
  while (skip_newlines_ > 0 && at_ < held_.size()) {
    if (held_[at_] != '\n') {
      skip_newlines_ = 0;
      break;
    }
    at_++;
    skip_newlines_--;
  }
  const std::string_view text = std::string_view(held_).substr(at_);
  switch (part_) {
    case Part::kStart: {
      const std::string_view begin = text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
      if (begin.starts_with(kThink)) {
        at_ += text.size() - begin.size() + kThink.size();
        skip_newlines_ = 1;
        part_ = Part::kReasoning;
        return true;
      }
      if (!last && kThink.starts_with(begin)) return false;
      part_ = Part::kContent;
      return true;
    }
    case Part::kReasoning: {
      const size_t end = text.find(kThinkEnd);
      if (end != std::string_view::npos) {
        out.reasoning += text.substr(0, end);
        at_ += end + kThinkEnd.size();
        skip_newlines_ = 2;
        part_ = Part::kContent;
        return true;
      }
      const size_t decided = text.size() - (last ? 0 : cut_tag(text, kThinkEnd));
      out.reasoning += text.substr(0, decided);
      at_ += decided;
      return false;
    }
    case Part::kContent:
      return content(out, last);
    case Part::kCall:
      return call(out, last);
  }
  return false;
}

bool ReplyParser::content(ReplyDelta& out, bool last) {
  if (after_call_) {
    at_ = std::min(held_.find_first_not_of(kSpace, at_), held_.size());
    if (at_ == held_.size()) return false;
    after_call_ = false;
  }
  const std::string_view text = std::string_view(held_).substr(at_);
  if (!options_.parse_tool_calls) {
    out.content += text;
    at_ = held_.size();
    return false;
  }
  const size_t tag = text.find(kCall);
  size_t decided = tag != std::string_view::npos ? tag : text.size() - (last ? 0 : cut_tag(text, kCall));
  // White space waits: before a call it is no content.
  if (tag != std::string_view::npos || !last) decided = text.substr(0, decided).find_last_not_of(kSpace) + 1;
  out.content += text.substr(0, decided);
  at_ += decided;
  if (tag == std::string_view::npos) return false;
  body_ = searched_ = at_ + (tag - decided) + kCall.size();
  in_string_ = false;
  part_ = Part::kCall;
  return true;
}

bool ReplyParser::call(ReplyDelta& out, bool last) {
  ToolCall call;
  Verdict verdict = judge(call);
  if (verdict == Verdict::kWait && !last) return false;
  part_ = Part::kContent;
  if (verdict == Verdict::kCall) {
    out.tool_calls.push_back(std::move(call));
    at_ = searched_;
    after_call_ = true;
  } else {
    // The tag was text; what stands behind it may still hold a call.
    out.content += std::string_view(held_).substr(at_, body_ - at_);
    at_ = body_;
  }
  return true;
}

ReplyParser::Verdict ReplyParser::judge(ToolCall& call) {
  const std::string_view body = std::string_view(held_).substr(body_);
  const std::string_view begin = body.substr(std::min(body.find_first_not_of(kSpace), body.size()));
  const bool json = begin.starts_with('{');
  if (!json && !begin.starts_with(kFunction))
    return kFunction.starts_with(begin) ? Verdict::kWait : Verdict::kMalformed;
  while (true) {
    const size_t end = held_.find(kCallEnd, searched_);
    const size_t known =
        end != std::string::npos ? end : held_.size() - std::min(kCallEnd.size() - 1, held_.size() - searched_);
    if (json) {
      for (size_t i = searched_; i < known; i++) {
        if (in_string_ && held_[i] == '\\')
          i++;
        else if (held_[i] == '"')
          in_string_ = !in_string_;
        searched_ = i + 1;
      }
    }
    searched_ = std::max(searched_, known);
    if (end == std::string::npos) return Verdict::kWait;
    if (searched_ > end) continue;  // the tag begins with an escaped character, inside a string
    const std::string_view inside = std::string_view(held_).substr(body_, end - body_);
    searched_ = end + kCallEnd.size();
    if (json) {
      if (in_string_) continue;
      return parse_json_call(inside, call) ? Verdict::kCall : Verdict::kMalformed;
    }
    // Text like the tag inside a value is followed by the rest of the call.
    const size_t text_end = inside.find_last_not_of(kSpace);
    if (text_end != std::string_view::npos && inside.substr(0, text_end + 1).ends_with("</function>") &&
        parse_xml_call(inside, options_.tools_json, call))
      return Verdict::kCall;
    const size_t parameter = inside.rfind("<parameter=");
    if (parameter == std::string_view::npos || inside.find("</parameter>", parameter) != std::string_view::npos)
      return Verdict::kMalformed;
  }
}

}  // namespace mettle

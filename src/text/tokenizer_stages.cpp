#include "text/tokenizer_stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace mettle {
namespace {

constexpr int kDepth = 8;  // Sequence within Sequence
constexpr size_t kSteps = 32;
constexpr size_t kGrowth = 16;  // a text may become so many times longer; NFKD needs 11

void check_size(const JsonValue& json, int depth, size_t steps) {
  if (steps == kSteps) fail(Code::kBadModel, fmt::format("{}: may have {} steps, got more", json.place(), kSteps));
  if (depth > kDepth) {
    fail(Code::kBadModel, fmt::format("{}: sequences may nest {} deep, got more", json.place(), kDepth));
  }
}

std::unique_ptr<Splitter> splitter_of(const JsonValue& pattern) {
  if (const auto regex = pattern.find("Regex")) return make_splitter(std::string(regex->string()), regex->place());
  const JsonValue literal = pattern.at("String");
  if (literal.string().empty()) literal.fail_kind("must not be empty");
  return make_literal_splitter(std::string(literal.string()));
}

}  // namespace

Normalizer::Normalizer(const JsonValue& json) { add(json, 0); }

void Normalizer::add(const JsonValue& json, int depth) {
  check_size(json, depth, steps_.size());
  const JsonValue type = json.at("type");
  const std::string_view name = type.string();
  using unicode::Form;
  if (name == "Sequence") {
    for (const JsonValue& item : json.at("normalizers").items()) add(item, depth + 1);
  } else if (name == "NFC" || name == "NFD" || name == "NFKC" || name == "NFKD") {
    const Form form = name == "NFC"    ? Form::kNfc
                      : name == "NFD"  ? Form::kNfd
                      : name == "NFKC" ? Form::kNfkc
                                       : Form::kNfkd;
    steps_.push_back({.kind = Step::Kind::kForm, .form = form});
  } else if (name == "Prepend") {
    steps_.push_back({.kind = Step::Kind::kPrepend, .text = std::string(json.at("prepend").string())});
  } else if (name == "Replace") {
    steps_.push_back({.kind = Step::Kind::kReplace,
                      .pattern = splitter_of(json.at("pattern")),
                      .text = std::string(json.at("content").string())});
  } else {
    type.fail_kind("must be a normalizer that is known (Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace)");
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string now(text);
  const auto check = [limit = text.size() * kGrowth + 1024](size_t size) {
    if (size <= limit) return;
    fail(Code::kBadModel, fmt::format("normalizer: may make {} bytes of this text, got {} and more", limit, size));
  };
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kForm:
        now = unicode::normalize(now, step.form);
        break;
      case Step::Kind::kPrepend:
        if (!now.empty()) now.insert(0, step.text);
        break;
      case Step::Kind::kReplace: {
        std::vector<Piece> matches;
        step.pattern->find(now, matches);
        std::string out;
        size_t done = 0;
        for (const Piece& m : matches) {
          out.append(now, done, m.begin - done).append(step.text);
          done = m.end;
          check(out.size());
        }
        now = out.append(now, done);
        break;
      }
    }
    check(now.size());
  }
  return now;
}

PreTokenizer::PreTokenizer(const JsonValue& json) {
  add(json, 0);
  if (!byte_level_) json.fail_kind("must be or contain ByteLevel (byte-level BPE)");
}

void PreTokenizer::add(const JsonValue& json, int depth) {
  check_size(json, depth, steps_.size());
  const JsonValue type = json.at("type");
  const std::string_view name = type.string();
  // After ByteLevel the text consists of stand-ins for bytes; a pattern applied to those would mean something else.
  if (byte_level_) type.fail_kind("must not follow ByteLevel");
  if (name == "Sequence") {
    for (const JsonValue& item : json.at("pretokenizers").items()) add(item, depth + 1);
  } else if (name == "Split") {
    const JsonValue behavior = json.at("behavior");
    constexpr std::string_view kNames[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const auto* found = std::find(std::begin(kNames), std::end(kNames), behavior.string());
    if (found == std::end(kNames)) behavior.fail_kind(fmt::format("must be one of {}", fmt::join(kNames, ", ")));
    steps_.push_back({.splitter = splitter_of(json.at("pattern")),
                      .behavior = static_cast<Behavior>(found - kNames),
                      .invert = json.boolean("invert", false)});
  } else if (name == "Digits") {
    const bool individual = json.boolean("individual_digits", false);
    steps_.push_back({.splitter = make_known_splitter(individual ? patterns::kDigit : patterns::kDigits)});
  } else if (name == "ByteLevel") {
    if (json.boolean("add_prefix_space", true)) steps_.push_back({});
    if (json.boolean("use_regex", true)) {
      steps_.push_back({.splitter = make_splitter(std::string(patterns::kGpt2), json.place())});
    }
    byte_level_ = true;
  } else {
    type.fail_kind("must be a pre-tokenizer that is known (Sequence, Split, Digits, ByteLevel)");
  }
}

void PreTokenizer::split(std::string_view text, Buffers& buffers) const {
  buffers.owned.clear();
  buffers.pieces.clear();
  if (!text.empty()) buffers.pieces.push_back(text);
  for (const Step& step : steps_) {
    buffers.next.clear();
    for (const std::string_view piece : buffers.pieces) {
      if (step.splitter) {
        cut(step, piece, buffers);
      } else if (piece.front() == ' ') {
        buffers.next.push_back(piece);
      } else {
        buffers.next.push_back(buffers.owned.emplace_back(" ").append(piece));
      }
    }
    std::swap(buffers.pieces, buffers.next);
  }
}

// Matches and the gaps between them become pieces as the behavior says; the rules are those of the reference library.
void PreTokenizer::cut(const Step& step, std::string_view text, Buffers& buffers) {
  buffers.matches.clear();
  step.splitter->find(text, buffers.matches);
  std::vector<Piece> spans;  // for the behaviors that merge
  bool previous_match = false;
  const auto put = [&](uint32_t begin, uint32_t end) {
    if (end > begin) buffers.next.push_back(text.substr(begin, end - begin));
  };
  const auto span = [&](uint32_t begin, uint32_t end, bool match) {
    if (step.invert) match = !match;
    switch (step.behavior) {
      case Behavior::kIsolated:
        return put(begin, end);
      case Behavior::kRemoved:
        return match ? void() : put(begin, end);
      case Behavior::kMergedWithPrevious:
        if (match && !previous_match && !spans.empty()) {
          spans.back().end = end;
        } else {
          spans.push_back({begin, end});
        }
        break;
      case Behavior::kMergedWithNext:
        // From the left: a span joins a match before it, unless another match follows that one at once.
        if (previous_match && !match) {
          spans.back().end = end;
        } else {
          spans.push_back({begin, end});
        }
        break;
      case Behavior::kContiguous:
        if (match == previous_match && !spans.empty()) {
          spans.back().end = end;
        } else {
          spans.push_back({begin, end});
        }
        break;
    }
    previous_match = match;
  };
  uint32_t at = 0;
  for (const Piece& m : buffers.matches) {
    if (at != m.begin) span(at, m.begin, false);
    span(m.begin, m.end, true);
    at = m.end;
  }
  if (at != text.size()) span(at, static_cast<uint32_t>(text.size()), false);
  for (const Piece& s : spans) put(s.begin, s.end);
}

}  // namespace mettle

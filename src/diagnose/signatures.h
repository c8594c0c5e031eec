// The data of the classifier: classes of causes, signatures, generic rules, markers. Read once from signatures.json,
// which is part of the program.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "diagnose/diagnose.h"
#include "diagnose/pattern.h"

namespace mettle::diagnose {

// What a match says about the run.
enum class Kind {
  kCause,    // the line states what broke
  kSymptom,  // something broke before it: a cause found anywhere in the run comes first
  kAdvice,   // a warning: the answer only when nothing broke harder
  kRequest,  // one client's request failed; the server need not
  kPlain,    // an everyday fault without a class of its own
  kWrapper,  // never the answer
  kNoise,
};

// The second fact that a row asks for.
enum class Need {
  kNone,
  kDevice,           // a GPU of at least SM `amount`
  kNoneSurvived,     // of the tactics
  kSilence,          // `amount` seconds without a line after it
  kFragmented,       // more free than was asked for, or asked again and again
  kTwice,            // the two sizes of the line: one is twice the other
  kLongContext,      // long contexts were seen to go wrong
  kRepeated,         // `amount` times in a row, with nothing produced in between
  kAnswer,           // it stands in an answer, not in a ruler or banner
  kSlow,             // a measurement far below the roofline
  kClientComplaint,  // a proxy or client complained
  kNoZeroCount,      // not "0 of ..."
  kEngineDied,       // the server did not survive it
  kGateOrToolkit,    // device and toolkit lines decide which of the two
  kErrorLine,        // the line is an error, not a remark
};

struct Example {
  std::string cause;  // expected answer
  std::string log;
};

struct Signature {
  std::string id, phrase, engine, cause, tell, remedy;
  Pattern pattern;
  std::vector<std::string> needles;  // lower case; every match holds one of them
  Kind kind = Kind::kCause;
  Confidence confidence = Confidence::kLow;
  Need need = Need::kNone;
  int amount = 0;
  bool generic = false;  // counts only in lines that no row of the table matches
  std::vector<Example> examples;
};

struct ClassInfo {
  std::string meaning;
  std::map<std::string, std::string> phases;              // phase -> what it means there
  std::map<std::string, std::vector<std::string>> flags;  // "engine", "engine@phase", "any"
  std::vector<std::string> missing;
  bool disputed = false;  // evidence in public reports conflicts: never more than low confidence
};

struct Marker {
  enum class What {
    kPhase,
    kReady,
    kSuccess,
    kSpeed,
    kStopping,
    kStart,
    kTuned,
    kEngine,
    kDevice,
    kToolkit,
    kFrame,
    kFact
  };
  What what;
  std::string value;
  std::string text;  // lower case
  Pattern pattern;   // of facts whose text alone is not enough
  bool has_pattern = false;
};

struct Misleading {
  std::string text;  // needle
  Pattern pattern;
  std::string why;
};

struct Compound {
  std::string name, cause, rank, confidence, log;
  uint64_t line = 0;  // of the first evidence, 0: none expected
};

struct Table {
  std::map<std::string, ClassInfo> classes;
  std::vector<Signature> signatures;  // those of the table, then the generic rules in their order
  std::vector<Marker> markers;
  std::vector<Misleading> misleading;
  std::vector<Compound> compounds;
};

std::string_view signatures_json();

// Fails with kInternal (entry and reason) when `json` is not such a table.
Table read_table(std::string_view json);
// The program's own, read at the first call.
const Table& table();

// What is wrong with a table, one line each: unknown classes, needles that no match needs to hold, rows without
// examples, two rows of one id, flags of unknown servers. Empty when it is clean.
std::vector<std::string> lint(const Table& table);

}  // namespace mettle::diagnose

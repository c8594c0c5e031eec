// Whether a backend may serve, and if not, why: a code, what there is, what is needed, one sentence, a remedy.
// Refusals are values, not exceptions. The codes stand in one table (verdict.cpp) that --help, docs and JSON share.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mettle {

enum class VerdictCode : uint8_t {
  kOk,
  kWrongSm,
  kIsaMissing,
  kNotBuilt,
  kNotLoaded,
  kLibraryMissing,
  kLibraryTooOld,
  kDriverTooOld,
  kNoCompiler,
  kCompileFailed,
  kNoPeerAccess,
  kSmemTooSmall,
  kShapeUnsupported,
  kFormatUnsupported,
  kSemanticsDiffer,
  kLayoutConflict,
  kOutOfMemory,
  kFault,
  kHang,
  kNotFinite,
  kZeroOutput,
  kIncompleteWrite,
  kWrongOutput,
  kWrongSelection,
  kRowDependent,
  kOverrun,
  kNondeterministic,
  kNotCapturable,
  kRanksDisagree,
  kNotFastest,
  kUnproved,
};

struct VerdictInfo {
  VerdictCode code;
  std::string_view name;     // WRONG_OUTPUT
  bool refusal;              // the device or the problem does not fit: not a failure of the backend
  std::string_view meaning;  // one sentence
  std::string_view remedy;
};
std::span<const VerdictInfo> verdict_table();  // all codes, in order
const VerdictInfo& info_of(VerdictCode code);
inline std::string_view name_of(VerdictCode code) { return info_of(code).name; }
VerdictCode verdict_code(std::string_view name);  // kInternal for an unknown name

struct Verdict {
  VerdictCode code = VerdictCode::kOk;
  std::string have, need;  // values: "avx2", "avx512bf16"
  std::string sentence;
  std::string remedy;
  bool ok() const { return code == VerdictCode::kOk; }
};

// A refusal or failure with the table's meaning and remedy where none is given.
Verdict refuse(VerdictCode code, std::string have, std::string need, std::string sentence = {},
               std::string remedy = {});

}  // namespace mettle

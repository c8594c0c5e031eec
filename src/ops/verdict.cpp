#include "ops/verdict.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace mettle {
namespace {

using enum VerdictCode;
constexpr VerdictInfo kTable[] = {
    {kOk, "OK", false, "proved on this device at this problem's shapes", ""},
    {kWrongSm, "WRONG_SM", true, "built for other GPU architectures than this device",
     "choose another backend, or build for this architecture"},
    {kIsaMissing, "ISA_MISSING", true, "this processor lacks an instruction set that the tactic needs",
     "none needed: another tactic serves"},
    {kNotBuilt, "NOT_BUILT", true, "this program was built without it", "build with the preset that contains it"},
    {kNotLoaded, "NOT_LOADED", true, "its code did not load on this device", "check the driver version"},
    {kLibraryMissing, "LIBRARY_MISSING", true, "a library it needs was not found", "install the library"},
    {kLibraryTooOld, "LIBRARY_TOO_OLD", true, "a library it needs is too old", "update the library"},
    {kDriverTooOld, "DRIVER_TOO_OLD", true, "the driver is older than it needs", "update the driver"},
    {kNoCompiler, "NO_COMPILER", true, "it compiles itself at first use and no compiler was found",
     "install the CUDA toolkit"},
    {kCompileFailed, "COMPILE_FAILED", false, "its code did not compile on this machine",
     "report the compiler's message"},
    {kNoPeerAccess, "NO_PEER_ACCESS", true, "the GPUs cannot read each other's memory", "use another communicator"},
    {kSmemTooSmall, "SMEM_TOO_SMALL", true, "it needs more shared memory per block than the device has",
     "choose another backend"},
    {kShapeUnsupported, "SHAPE_UNSUPPORTED", true, "it does not handle this shape", "choose another backend"},
    {kFormatUnsupported, "FORMAT_UNSUPPORTED", true, "it does not handle this weight or activation format",
     "choose another backend"},
    {kSemanticsDiffer, "SEMANTICS_DIFFER", true, "it computes something else than the model asks for",
     "choose another backend"},
    {kLayoutConflict, "LAYOUT_CONFLICT", true, "it reads another weight layout than the plan packs",
     "choose it for all row buckets, or none"},
    {kOutOfMemory, "OUT_OF_MEMORY", false, "its proof ran out of memory", "free memory and prove again"},
    {kFault, "FAULT", false, "its proof ended by a signal or a device fault", "report it; another backend serves"},
    {kHang, "HANG", false, "its proof was silent past the deadline and was ended", "report it; another backend serves"},
    {kNotFinite, "NOT_FINITE", false, "it wrote NaN or infinity where the reference is finite",
     "report it; another backend serves"},
    {kZeroOutput, "ZERO_OUTPUT", false, "it wrote zeros where the reference is not zero",
     "report it; another backend serves"},
    {kIncompleteWrite, "INCOMPLETE_WRITE", false, "it left part of its output unwritten",
     "report it; another backend serves"},
    {kWrongOutput, "WRONG_OUTPUT", false, "its output is outside what rounding can explain",
     "report it; another backend serves"},
    {kWrongSelection, "WRONG_SELECTION", false, "it selected experts or tokens that the scores do not justify",
     "report it; another backend serves"},
    {kRowDependent, "ROW_DEPENDENT", false, "a row's result depends on its neighbours",
     "report it; another backend serves"},
    {kOverrun, "OVERRUN", false, "it wrote outside its output", "report it; another backend serves"},
    {kNondeterministic, "NONDETERMINISTIC", false, "two runs on the same input differ and it does not say so",
     "report it; another backend serves"},
    {kNotCapturable, "NOT_CAPTURABLE", true, "it cannot be captured in a graph", "it may run eagerly"},
    {kRanksDisagree, "RANKS_DISAGREE", false, "ranks computed different results", "check the fabric; prove again"},
    {kNotFastest, "NOT_FASTEST", true, "proved, but another proved backend is faster here", "none needed"},
    {kUnproved, "UNPROVED", true, "not proved yet", "run mettle prove"},
};

}  // namespace

std::span<const VerdictInfo> verdict_table() { return kTable; }

const VerdictInfo& info_of(VerdictCode code) { return kTable[static_cast<size_t>(code)]; }

VerdictCode verdict_code(std::string_view name) {
  for (const VerdictInfo& row : kTable)
    if (row.name == name) return row.code;
  fail(Code::kInternal, "verdict: no code named \"" + std::string(name) + "\"");
}

Verdict refuse(VerdictCode code, std::string have, std::string need, std::string sentence, std::string remedy) {
  const VerdictInfo& row = info_of(code);
  return {code, std::move(have), std::move(need), sentence.empty() ? std::string(row.meaning) : std::move(sentence),
          remedy.empty() ? std::string(row.remedy) : std::move(remedy)};
}

}  // namespace mettle

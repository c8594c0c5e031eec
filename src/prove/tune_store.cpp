#include "prove/tune_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file_map.h"
#include "base/log.h"
#include "prove/store_folder.h"

namespace mettle {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "mettle-tuning 1 ";
constexpr size_t kLargestFile = size_t{16} << 20;
constexpr int kDeepest = 8;
constexpr size_t kMostUnits = 10'000, kMostTimes = 256, kLongestText = 2'000;
constexpr double kLongestUs = 1e10;  // hours
constexpr double kMostNoise = 100;
constexpr int kMostSamples = 1'000'000;

constexpr TuneOutcome kOutcomes[] = {TuneOutcome::kSame, TuneOutcome::kFaster, TuneOutcome::kKept};

json time_json(const TunedTime& t) {
  return {{"backend", t.backend}, {"tactic", t.tactic}, {"us", t.us}, {"noise", t.noise}, {"samples", t.samples}};
}

// Reads values out of parsed JSON; whatever does not fit is an error that names the place.
class Reader {
 public:
  Reader(std::string file, std::string at, const json& in) : file_(std::move(file)), at_(std::move(at)), in_(in) {}

  [[noreturn]] void wrong(const std::string& need) const {
    std::string have = in_.is_structured() ? in_.type_name() : in_.dump(-1, ' ', true, json::error_handler_t::replace);
    if (have.size() > 80) have = have.substr(0, 80) + "...";
    fail(Code::kBadModel, fmt::format("{}: {}: must be {}, got {}", file_, at_, need, have));
  }
  // All of these fields and no other.
  void fields(std::initializer_list<const char*> names) const {
    if (!in_.is_object()) wrong("an object");
    for (const auto& [key, value] : in_.items())
      if (std::find(names.begin(), names.end(), key) == names.end())
        fail(Code::kBadModel, fmt::format("{}: {}: has an unknown field \"{:.80}\"", file_, at_, key));
    for (const char* name : names)
      if (!in_.contains(name)) fail(Code::kBadModel, fmt::format("{}: {}: has no \"{}\"", file_, at_, name));
  }
  Reader of(const char* name) const { return {file_, at_.empty() ? name : at_ + "." + name, in_.at(name)}; }
  Reader of(size_t index) const { return {file_, fmt::format("{}[{}]", at_, index), in_.at(index)}; }
  size_t elements(size_t most) const {
    if (!in_.is_array() || in_.size() > most) wrong(fmt::format("a list of at most {}", most));
    return in_.size();
  }
  std::string text() const {
    if (!in_.is_string() || in_.get_ref<const std::string&>().size() > kLongestText)
      wrong(fmt::format("text of at most {} characters", kLongestText));
    return in_;
  }
  double number(double least, double most) const {
    const double value = in_.is_number() ? in_.get<double>() : NAN;
    if (!(value >= least && value <= most)) wrong(fmt::format("a number in {}..{}", least, most));
    return value;
  }
  int whole(int least, int most) const {
    if (!in_.is_number_integer() || in_.get<double>() < least || in_.get<double>() > most)
      wrong(fmt::format("a whole number in {}..{}", least, most));
    return in_.get<int>();
  }

 private:
  std::string file_, at_;
  const json& in_;
};

TunedTime read_time(const Reader& in) {
  in.fields({"backend", "tactic", "us", "noise", "samples"});
  return {in.of("backend").text(), in.of("tactic").text(), in.of("us").number(1e-6, kLongestUs),
          in.of("noise").number(0, kMostNoise), in.of("samples").whole(1, kMostSamples)};
}

bool same_tactic(const TunedTime& a, const TunedTime& b) { return a.backend == b.backend && a.tactic == b.tactic; }

TunedUnit read_unit(const Reader& in) {
  in.fields({"op", "problem", "rows", "outcome", "chosen", "untuned", "times"});
  TunedUnit unit;
  unit.op = in.of("op").text();
  unit.problem = in.of("problem").text();
  const int rows = in.of("rows").whole(1, kRowBuckets.back());
  const auto bucket = std::find(kRowBuckets.begin(), kRowBuckets.end(), rows);
  if (bucket == kRowBuckets.end()) in.of("rows").wrong(fmt::format("one of {}", fmt::join(kRowBuckets, ", ")));
  unit.bucket = static_cast<size_t>(bucket - kRowBuckets.begin());
  const std::string outcome = in.of("outcome").text();
  const auto* known =
      std::find_if(std::begin(kOutcomes), std::end(kOutcomes), [&](TuneOutcome o) { return name_of(o) == outcome; });
  if (known == std::end(kOutcomes)) in.of("outcome").wrong("same, faster or kept");
  unit.outcome = *known;
  unit.chosen = read_time(in.of("chosen"));
  unit.untuned = read_time(in.of("untuned"));
  const Reader times = in.of("times");
  for (size_t i = 0, n = times.elements(kMostTimes); i < n; ++i) {
    unit.times.push_back(read_time(times.of(i)));
    for (size_t j = 0; j < i; ++j)
      if (same_tactic(unit.times[i], unit.times[j])) times.of(i).wrong("a tactic that is not in the list already");
  }
  const auto timed = [&](const TunedTime& t) {
    return std::any_of(unit.times.begin(), unit.times.end(), [&](const TunedTime& x) { return same_tactic(x, t); });
  };
  if (!timed(unit.chosen)) in.of("chosen").wrong("one of the tactics in times");
  if ((unit.outcome != TuneOutcome::kFaster) != same_tactic(unit.chosen, unit.untuned))
    in.of("outcome").wrong("faster exactly when the choice is not the untuned one");
  return unit;
}

// Nesting is counted before anything is built of it.
void check_depth(const std::string& name, std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest)
        fail(Code::kBadModel, fmt::format("{}: nested deeper than {} levels at byte {}", name, kDeepest, i));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

std::string key_of(const TunedUnit& u) { return fmt::format("{}|{}|{}", u.op, u.problem, u.bucket); }

}  // namespace

std::string_view name_of(TuneOutcome outcome) {
  switch (outcome) {
    case TuneOutcome::kSame:
      return "same";
    case TuneOutcome::kFaster:
      return "faster";
    case TuneOutcome::kKept:
      return "kept";
  }
  return "?";
}

TuningIdentity tuning_identity(const Device& device, int threads) {
  TuningIdentity id{build_id(), device.name, device.model, device.driver, "", threads};
  for (const Isa isa : device.isas) id.isas += fmt::format("{}{}", id.isas.empty() ? "" : " ", name_of(isa));
  return id;
}

std::string tuning_text(const Tuning& tuning) {
  json units = json::array();
  for (const TunedUnit& u : tuning.units) {
    json times = json::array();
    for (const TunedTime& t : u.times) times.push_back(time_json(t));
    units.push_back({{"op", u.op},
                     {"problem", u.problem},
                     {"rows", kRowBuckets[u.bucket]},
                     {"outcome", name_of(u.outcome)},
                     {"chosen", time_json(u.chosen)},
                     {"untuned", time_json(u.untuned)},
                     {"times", times}});
  }
  const TuningIdentity& id = tuning.identity;
  const json all = {{"build", id.build}, {"device", id.device},   {"model", id.model}, {"driver", id.driver},
                    {"isas", id.isas},   {"threads", id.threads}, {"units", units}};
  const std::string body = all.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  return fmt::format("{}{:016x}\n{}", kMagic, checksum(body), body);
}

Tuning parse_tuning(const std::string& name, std::string_view text) {
  if (text.size() > kLargestFile)
    fail(Code::kBadModel, fmt::format("{}: must have at most {} bytes, has {}", name, kLargestFile, text.size()));
  const size_t end = text.find('\n');
  if (!text.starts_with(kMagic.substr(0, kMagic.find(' ') + 1)) || end == std::string_view::npos || end > 100)
    fail(Code::kBadModel, fmt::format("{}: is no tuning: its first line must begin with \"{}\"", name, kMagic));
  const std::string_view head = text.substr(0, end), body = text.substr(end + 1);
  if (!head.starts_with(kMagic))
    fail(Code::kBadModel,
         fmt::format("{}: is of another version: its first line must begin with \"{}\", got \"{:.40}\"", name, kMagic,
                     head));
  const std::string sum = fmt::format("{:016x}", checksum(body));
  if (head.substr(kMagic.size()) != sum)
    fail(Code::kBadModel, fmt::format("{}: is damaged or cut: its checksum must be {}, the {} bytes after its first "
                                      "line give {}",
                                      name, head.substr(kMagic.size()), body.size(), sum));
  check_depth(name, body);
  const json all = json::parse(body, nullptr, false);
  if (all.is_discarded()) fail(Code::kBadModel, fmt::format("{}: is no JSON after its first line", name));
  const Reader in(name, "", all);
  Tuning tuning;
  in.fields({"build", "device", "model", "driver", "isas", "threads", "units"});
  tuning.identity = {in.of("build").text(),  in.of("device").text(), in.of("model").text(),
                     in.of("driver").text(), in.of("isas").text(),   in.of("threads").whole(1, 1 << 16)};
  const Reader units = in.of("units");
  std::set<std::string> seen;
  for (size_t i = 0, n = units.elements(kMostUnits); i < n; ++i) {
    tuning.units.push_back(read_unit(units.of(i)));
    if (!seen.insert(key_of(tuning.units.back())).second)
      units.of(i).wrong("of a problem and row count that were not listed before");
  }
  return tuning;
}

TuningStore::TuningStore(const std::string& cache_folder, const TuningIdentity& identity) : identity_(identity) {
  const std::string folder = cache_folder.empty() ? default_cache_folder() : cache_folder;
  if (folder == "none") return;
  const std::string key = fmt::format("{}|{}|{}|{}|{}|{}", identity.build, identity.device, identity.model,
                                      identity.driver, identity.isas, identity.threads);
  path_ = fmt::format("{}/tunings/{:016x}.json", folder, checksum(key));
}

std::vector<TunedUnit> TuningStore::load() const {
  std::error_code ec;
  if (path_.empty() || !std::filesystem::is_regular_file(path_, ec)) return {};
  try {
    Tuning tuning = parse_tuning(path_, read_file(path_, kLargestFile));
    if (tuning.identity == identity_) return std::move(tuning.units);
  } catch (const std::exception& e) {
    log::debug("tune: {} is not used: {}", path_, e.what());
  }
  return {};
}

void TuningStore::put(const TunedUnit& unit) {
  if (path_.empty()) return;
  try {
    const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    std::filesystem::create_directories(folder);
    const StoreTurn turn(folder);
    if (turn.held()) sweep_leftovers(folder);
    std::vector<TunedUnit> units = load();
    std::erase_if(units, [&](const TunedUnit& u) { return key_of(u) == key_of(unit); });
    units.push_back(unit);
    if (units.size() > kMostUnits) units.erase(units.begin(), units.end() - static_cast<std::ptrdiff_t>(kMostUnits));
    write_file_atomically(path_, tuning_text({identity_, std::move(units)}));
  } catch (const std::exception& e) {
    if (!warned_) log::warn("tune: results are not kept: {}", e.what());
    warned_ = true;
  }
}

std::vector<TunedUnit> read_tuning(const std::string& path, const TuningIdentity& here) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec))
    fail(Code::kBadModel,
         fmt::format("{}: {}", path, std::filesystem::exists(path, ec) ? "is no file" : "no such file"));
  Tuning tuning = parse_tuning(path, read_file(path, kLargestFile));
  const TuningIdentity& id = tuning.identity;
  const auto same = [&](const char* what, const std::string& theirs, const std::string& ours) {
    if (theirs != ours)
      fail(Code::kBadModel, fmt::format("{}: was measured with another {}: it has \"{}\", here is \"{}\"; times do not "
                                        "carry over, run mettle tune here",
                                        path, what, theirs, ours));
  };
  same("device", id.device, here.device);
  same("device model", id.model, here.model);
  same("driver", id.driver, here.driver);
  same("set of instructions", id.isas, here.isas);
  same("build of mettle", id.build, here.build);
  if (id.threads != here.threads)
    fail(Code::kBadModel, fmt::format("{}: was measured with {} threads, here are {}: give --threads {}", path,
                                      id.threads, here.threads, id.threads));
  return std::move(tuning.units);
}

void check_tuned(const std::string& path, std::span<const TunedUnit> units, const ProofReport& report) {
  for (const TunedUnit& u : units) {
    const bool known = std::any_of(report.entries.begin(), report.entries.end(),
                                   [&](const ProofEntry& e) { return e.op == u.op && e.problem == u.problem; });
    if (!known) fail(Code::kBadModel, fmt::format("{}: the model has no problem \"{} {}\"", path, u.op, u.problem));
    const auto proved = [&](const TunedTime& t) {
      const ProofEntry* e = report.find(u.problem, t.backend, t.tactic);
      if (e == nullptr || e->op != u.op)
        fail(Code::kBadModel,
             fmt::format("{}: {} has no backend \"{}\" with tactic \"{}\" here", path, u.op, t.backend, t.tactic));
      if (!e->verdict.ok())
        fail(Code::kBadModel,
             fmt::format("{}: {} {} {} is not proved here for {}: {}{}{}", path, u.op, t.backend, t.tactic, u.problem,
                         name_of(e->verdict.code), e->verdict.sentence.empty() ? "" : ", ", e->verdict.sentence));
    };
    for (const TunedTime& t : u.times) proved(t);
    proved(u.chosen);
    proved(u.untuned);
  }
}

}  // namespace mettle

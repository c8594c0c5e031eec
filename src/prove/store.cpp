#include "prove/store.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_map.h"
#include "base/log.h"
#include "prove/store_folder.h"

namespace mettle {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "mettle-verdicts 2 ";
constexpr size_t kLargestFile = size_t{64} << 20;
constexpr std::chrono::milliseconds kMoment{50};

std::string key_of(const ProofEntry& e) {
  return fmt::format("{}|{}|{}|{}|{}", e.op, e.problem, e.backend, e.tactic, e.numerics);
}

// The body of a whole file; empty: damaged, of another version or foreign.
std::string_view body_of(std::string_view content) {
  const size_t end = content.find('\n');
  if (!content.starts_with(kMagic) || end == std::string_view::npos) return {};
  const std::string_view body = content.substr(end + 1);
  return content.substr(kMagic.size(), end - kMagic.size()) == fmt::format("{:016x}", checksum(body))
             ? body
             : std::string_view{};
}

// Deletes a file and says what it held.
VerdictStore::Forgotten forget_file(const std::string& path) {
  VerdictStore::Forgotten out{.path = path};
  try {
    const std::string content = read_file(path, kLargestFile);
    out.bytes = content.size();
    const json all = json::parse(body_of(content), nullptr, false);
    if (all.is_object()) {
      out.identity = all.at("identity").get<std::string>();
      out.verdicts = all.at("entries").size();
    }
  } catch (const std::exception& e) {
    log::debug("prove: {} is forgotten unread: {}", path, e.what());
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    fail(Code::kDevice, fmt::format("{}: cannot delete: {}", path, std::strerror(errno)));
  return out;
}

// What another run may find different is not kept.
bool worth_keeping(VerdictCode code) {
  return code != VerdictCode::kHang && code != VerdictCode::kOutOfMemory && code != VerdictCode::kUnproved;
}

}  // namespace

VerdictStore::VerdictStore(std::string folder, const std::string& build, const Device& device) {
  if (folder.empty() || folder == "none") return;
  identity_ = fmt::format("{} {} {}", build, device.name, device.model);
  if (!device.driver.empty()) identity_ += " " + device.driver;
  for (const Isa isa : device.isas) identity_ += fmt::format(" {}", name_of(isa));
  path_ = fmt::format("{}/verdicts/{:016x}.json", folder, checksum(identity_));
  kept_ = load(path_, identity_);
}

std::map<std::string, VerdictStore::Kept> VerdictStore::load(const std::string& path, const std::string& identity) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return {};
  try {
    const std::string content = read_file(path, kLargestFile);
    const std::string_view body = body_of(content);
    if (body.empty()) return {};
    const json all = json::parse(body);
    if (all.at("identity").get_ref<const std::string&>() != identity) return {};
    std::map<std::string, Kept> out;
    for (const json& j : all.at("entries")) {
      Kept k;
      ProofEntry& e = k.entry;
      e.op = j.at("op");
      e.problem = j.at("problem");
      e.backend = j.at("backend");
      e.tactic = j.at("tactic");
      e.numerics = j.at("numerics");
      e.verdict = {verdict_code(j.at("verdict").get_ref<const std::string&>()), j.at("have"), j.at("need"),
                   j.at("sentence"), j.at("remedy")};
      e.max_error = j.at("max_error");
      e.bound = j.at("bound");
      e.group_error = j.at("group_error");
      e.comparisons = j.at("comparisons");
      e.cases = j.at("cases");
      e.ms = j.at("ms");
      e.cached = true;
      if (e.verdict.ok() && !(e.comparisons > 0 && e.max_error <= e.bound && e.group_error <= 1)) continue;
      for (const auto& [threads, us] : j.at("us").items()) {
        int n = 0;
        std::from_chars(threads.data(), threads.data() + threads.size(), n);
        k.us[n] = us.get<std::array<double, kRowBuckets.size()>>();
      }
      out[key_of(e)] = std::move(k);
    }
    return out;
  } catch (const std::exception& e) {
    log::debug("prove: {} is not used: {}", path, e.what());
    return {};
  }
}

bool VerdictStore::find(ProofEntry& entry, int threads, bool* timed) const {
  const auto at = kept_.find(key_of(entry));
  if (at == kept_.end()) return false;
  entry = at->second.entry;
  const auto us = at->second.us.find(threads);
  *timed = us != at->second.us.end();
  if (*timed) entry.us = us->second;
  return true;
}

void VerdictStore::put(const ProofEntry& entry, int threads) {
  if (path_.empty() || !worth_keeping(entry.verdict.code)) return;
  Kept& k = fresh_[key_of(entry)];
  k.entry = entry;
  // The next start may find room for better times.
  if (entry.us.front() > 0 && !entry.timed_from_cache) k.us[threads] = entry.us;
}

void VerdictStore::keep(const ProofEntry& entry, int threads) {
  put(entry, threads);
  if (!failed_) write(kMoment, false);
}

void VerdictStore::save() { write(StoreTurn::kPatience, true); }

VerdictStore::Stamp VerdictStore::stamp_of(const std::string& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0) return {};
  return {s.st_ino, static_cast<uint64_t>(s.st_size), s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
}

const std::string& VerdictStore::text_of(Kept& k) {
  if (!k.text.empty()) return k.text;
  const ProofEntry& e = k.entry;
  json us = json::object();
  for (const auto& [threads, times] : k.us) us[std::to_string(threads)] = times;
  k.text = json{
      {"op", e.op},
      {"problem", e.problem},
      {"backend", e.backend},
      {"tactic", e.tactic},
      {"numerics", e.numerics},
      {"verdict", name_of(e.verdict.code)},
      {"have", e.verdict.have},
      {"need", e.verdict.need},
      {"sentence", e.verdict.sentence},
      {"remedy", e.verdict.remedy},
      {"max_error", e.max_error},
      {"bound", e.bound},
      {"group_error", e.group_error},
      {"comparisons", e.comparisons},
      {"cases", e.cases},
      {"ms", e.ms},
      {"us",
       us}}.dump(1, ' ', false, json::error_handler_t::replace);
  return k.text;
}

// What the file holds is read again only when another has written it meanwhile, and only what is new becomes text anew:
// writing after each verdict costs little.
void VerdictStore::write(std::chrono::milliseconds patience, bool last) {
  if (path_.empty() || fresh_.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);  // what it cannot do, the writing below says
  const StoreTurn turn(folder, patience);
  if (!turn.held() && !last) return;
  if (turn.held() && !swept_) sweep_leftovers(folder);
  swept_ = swept_ || turn.held();
  if (!(stamp_of(path_) == stamp_)) on_file_ = load(path_, identity_);
  for (auto& [key, fresh] : fresh_) {
    Kept& k = on_file_[key];
    k.entry = fresh.entry;
    k.text.clear();
    for (const auto& [threads, us] : fresh.us) k.us[threads] = us;
  }
  std::string body = fmt::format("{{\"identity\": {}, \"entries\": [",
                                 json(identity_).dump(-1, ' ', false, json::error_handler_t::replace));
  for (auto& [key, k] : on_file_) body += fmt::format("{}\n{}", body.back() == '[' ? "" : ",", text_of(k));
  body += "\n]}\n";
  try {
    write_file_atomically(path_, fmt::format("{}{:016x}\n{}", kMagic, checksum(body), body));
    fresh_.clear();
  } catch (const std::exception& e) {
    if (!failed_) log::warn("prove: verdicts are not kept: {}", e.what());
    failed_ = true;
  }
  stamp_ = stamp_of(path_);
  if (failed_) on_file_ = load(path_, identity_);
}

std::vector<VerdictStore::Forgotten> VerdictStore::forget() {
  std::error_code ec;
  if (path_.empty() || !std::filesystem::exists(std::filesystem::symlink_status(path_, ec))) return {};
  const StoreTurn turn(std::filesystem::path(path_).parent_path());
  kept_.clear();
  fresh_.clear();
  on_file_.clear();
  stamp_ = {};
  return {forget_file(path_)};
}

std::vector<VerdictStore::Forgotten> VerdictStore::forget_all(const std::string& folder) {
  if (folder.empty() || folder == "none") return {};
  const std::filesystem::path verdicts = std::filesystem::path(folder) / "verdicts";
  const StoreTurn turn(verdicts);
  if (turn.held()) sweep_leftovers(verdicts);
  std::error_code ec;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(verdicts, ec))
    if (is_store_name(entry.path().filename().string())) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<Forgotten> out;
  for (const std::string& path : paths) out.push_back(forget_file(path));
  return out;
}

}  // namespace mettle

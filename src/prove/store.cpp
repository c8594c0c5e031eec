#include "prove/store.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_map.h"
#include "base/log.h"

namespace mettle {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "mettle-verdicts 1 ";
constexpr size_t kLargestFile = size_t{64} << 20;

uint64_t fnv(std::string_view bytes) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

std::string key_of(const ProofEntry& e) {
  return fmt::format("{}|{}|{}|{}|{}", e.op, e.problem, e.backend, e.tactic, e.numerics);
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
  path_ = fmt::format("{}/verdicts/{:016x}.json", folder, fnv(identity_));
  kept_ = load(path_, identity_);
}

std::map<std::string, VerdictStore::Kept> VerdictStore::load(const std::string& path, const std::string& identity) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return {};
  try {
    const std::string content = read_file(path, kLargestFile);
    const size_t end = content.find('\n');
    if (!content.starts_with(kMagic) || end == std::string::npos) return {};
    const std::string_view body = std::string_view(content).substr(end + 1);
    if (content.substr(kMagic.size(), end - kMagic.size()) != fmt::format("{:016x}", fnv(body))) return {};
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
      e.comparisons = j.at("comparisons");
      e.cases = j.at("cases");
      e.ms = j.at("ms");
      e.cached = true;
      if (e.verdict.ok() && !(e.comparisons > 0 && e.max_error <= e.bound)) continue;
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
  if (entry.us.front() > 0) k.us[threads] = entry.us;
}

void VerdictStore::save() {
  if (path_.empty() || fresh_.empty()) return;
  std::map<std::string, Kept> all = load(path_, identity_);
  for (auto& [key, fresh] : fresh_) {
    Kept& k = all[key];
    k.entry = fresh.entry;
    for (const auto& [threads, us] : fresh.us) k.us[threads] = us;
  }
  json entries = json::array();
  for (const auto& [key, k] : all) {
    const ProofEntry& e = k.entry;
    json us = json::object();
    for (const auto& [threads, times] : k.us) us[std::to_string(threads)] = times;
    entries.push_back({{"op", e.op},
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
                       {"comparisons", e.comparisons},
                       {"cases", e.cases},
                       {"ms", e.ms},
                       {"us", us}});
  }
  const std::string body =
      json{{"identity", identity_}, {"entries", entries}}.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  try {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    write_file_atomically(path_, fmt::format("{}{:016x}\n{}", kMagic, fnv(body), body));
  } catch (const std::exception& e) {
    log::warn("prove: verdicts are not kept: {}", e.what());
  }
}

}  // namespace mettle

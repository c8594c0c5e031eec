#include "diagnose/needle_index.h"

#include <string>
#include <unordered_map>
#include <utility>

namespace mettle::diagnose {

NeedleIndex index_of(const Table& table) {
  using Owner = NeedleIndex::Owner;
  std::vector<std::string> needles;
  std::vector<std::vector<Owner>> owners;
  std::unordered_map<std::string, uint32_t> known;
  const auto add = [&](const std::string& needle, Owner owner) {
    const auto [at, made] = known.try_emplace(needle, static_cast<uint32_t>(needles.size()));
    if (made) {
      needles.push_back(needle);
      owners.emplace_back();
    }
    owners[at->second].push_back(owner);
  };
  for (uint32_t i = 0; i < table.signatures.size(); ++i)
    for (const std::string& needle : table.signatures[i].needles) add(needle, {Owner::What::kSignature, i});
  for (uint32_t i = 0; i < table.markers.size(); ++i) add(table.markers[i].text, {Owner::What::kMarker, i});
  for (uint32_t i = 0; i < table.misleading.size(); ++i) add(table.misleading[i].text, {Owner::What::kMisleading, i});
  add("\", line ", {Owner::What::kFrame, 0});
  for (const char* word : {"error", "fatal", "critical", "exception"}) add(word, {Owner::What::kError, 0});
  return {std::move(owners), NeedleScanner(needles)};
}

}  // namespace mettle::diagnose

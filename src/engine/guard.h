// What went wrong while serving: how often each backend was the first of a step to give values that are not finite,
// and which may not serve any more.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace mettle {

// So many steps with values that are not finite, and a backend goes. One may be a bit that flipped in memory; a second
// the same request, sent again by a client that was told to; a third is the backend.
inline constexpr uint64_t kGuardLimit = 3;

class GuardBook {
 public:
  // True when the backend has reached the limit.
  bool count(std::string_view op, std::string_view backend);
  void forget(std::string_view op, std::string_view backend);  // it was not the backend: count from zero
  void quarantine(std::string_view op, std::string_view backend, std::string why);
  bool quarantined(std::string_view op, std::string_view backend) const;

  const std::vector<GuardEvents>& events() const { return events_; }
  const std::vector<Quarantine>& quarantines() const { return quarantines_; }

 private:
  GuardEvents& of(std::string_view op, std::string_view backend);
  std::vector<GuardEvents> events_;
  std::vector<Quarantine> quarantines_;
};

}  // namespace mettle

#include "engine/guard.h"

#include <algorithm>

namespace mettle {

std::string_view name_of(Guard guard) {
  switch (guard) {
    case Guard::kOff:
      return "off";
    case Guard::kFinite:
      return "finite";
    case Guard::kSpot:
      return "spot";
  }
  return "?";
}

GuardEvents& GuardBook::of(std::string_view op, std::string_view backend) {
  for (GuardEvents& e : events_)
    if (e.op == op && e.backend == backend) return e;
  return events_.emplace_back(GuardEvents{std::string(op), std::string(backend)});
}

bool GuardBook::count(std::string_view op, std::string_view backend) {
  GuardEvents& e = of(op, backend);
  ++e.events;
  return ++e.counted >= kGuardLimit;
}

void GuardBook::forget(std::string_view op, std::string_view backend) { of(op, backend).counted = 0; }

void GuardBook::quarantine(std::string_view op, std::string_view backend, std::string why) {
  quarantines_.push_back({std::string(op), std::string(backend), std::move(why)});
}

bool GuardBook::quarantined(std::string_view op, std::string_view backend) const {
  return std::any_of(quarantines_.begin(), quarantines_.end(),
                     [&](const Quarantine& q) { return q.op == op && q.backend == backend; });
}

}  // namespace mettle

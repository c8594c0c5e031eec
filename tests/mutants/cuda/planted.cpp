// What mettle_planted.h declares.
#include <vector>

#include "mettle_planted.h"

namespace mettle::planted {
namespace {

std::vector<void (*)(int)>& setters() {
  static std::vector<void (*)(int)> all;
  return all;
}

}  // namespace

void at_start(void (*set)(int)) { setters().push_back(set); }

void switch_on(int number) {
  fault = number;
  for (void (*set)(int) : setters()) set(number);
}

int calls() {
  static int count = 0;
  return count++;
}

const void* earlier(const void* p) {
  static const void* first = p;
  return first;
}

}  // namespace mettle::planted

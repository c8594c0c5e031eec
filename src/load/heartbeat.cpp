#include "load/heartbeat.h"

#include <chrono>

namespace mettle {
namespace {
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kGap{5};
constexpr size_t kMostBeats = size_t{1} << 24;  // a day
}  // namespace

Heartbeat::Heartbeat() : thread_([this] { beat(); }) {}

Heartbeat::~Heartbeat() {
  if (thread_.joinable()) stop();
}

std::vector<double> Heartbeat::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
  return std::move(lags_ms_);
}

void Heartbeat::beat() {
  std::unique_lock lock(mutex_);
  for (Clock::time_point due = Clock::now() + kGap; lags_ms_.size() < kMostBeats;) {
    const bool stop = stopped_.wait_until(lock, due, [&] { return stop_; });
    for (const Clock::time_point now = Clock::now(); due <= now && lags_ms_.size() < kMostBeats; due += kGap)
      lags_ms_.push_back(std::chrono::duration<double, std::milli>(now - due).count());
    if (stop) return;
  }
}

}  // namespace mettle

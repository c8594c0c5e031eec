// Whether threads of this process run when they are due. A thread sleeps to fixed points of time; one that it misses
// counts as late from that point on, so the values are lags at evenly spaced moments, however long it was held up.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace mettle {

class Heartbeat {
 public:
  Heartbeat();
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  std::vector<double> stop();  // milliseconds

 private:
  void beat();
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::vector<double> lags_ms_;
  std::thread thread_;
};

}  // namespace mettle

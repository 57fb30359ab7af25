// Sees to it that work on a stream ends: a thread that looks at events behind the work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/handles.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

class DeadlineWatch {
 public:
  // `failure` says what is wrong with work that is under way, empty if nothing is known; `give_up` is called once, with
  // that, or when a mark is not passed within the deadline after the one before it. Both are called from the thread.
  DeadlineWatch(const CudaDevice& device, double deadline_seconds, std::function<std::string()> failure,
                std::function<void(std::string)> give_up);
  // Ends the thread; does not wait for the stream.
  ~DeadlineWatch();
  DeadlineWatch(const DeadlineWatch&) = delete;
  DeadlineWatch& operator=(const DeadlineWatch&) = delete;

  // A mark behind what is enqueued on the stream, which is not capturing. The device is current.
  Status mark(cudaStream_t stream);

 private:
  using Clock = std::chrono::steady_clock;
  struct Mark {
    Event event;
    Clock::time_point enqueued;
  };
  void run();
  // What to give up for; empty: nothing. Takes away the marks that are passed.
  std::string look();

  const CudaDevice& device_;
  const double deadline_seconds_;
  const std::function<std::string()> failure_;
  const std::function<void(std::string)> give_up_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::deque<Mark> marks_;
  std::vector<Event> unused_;
  Clock::time_point last_passed_;
  std::thread thread_;
};

}  // namespace dsv4rt::cuda

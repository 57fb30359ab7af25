// Threads by number, for work that is always to run on the same one, such as the steps of an engine of several.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt {

class NumberedThreads {
 public:
  // kResourceExhausted when the system has no more threads.
  static Result<std::unique_ptr<NumberedThreads>> create(std::size_t threads);
  // Waits for what was started.
  ~NumberedThreads();
  NumberedThreads(const NumberedThreads&) = delete;
  NumberedThreads& operator=(const NumberedThreads&) = delete;

  // Begins `work` on a thread, which has none: always the same one for the same number.
  void start(std::size_t thread, std::function<void()> work);
  // Returns when nothing runs any more. What work threw is thrown here, the first of several; the others are lost.
  void wait();

 private:
  struct Worker {
    std::function<void()> work;  // guarded by mutex_, as all below is; empty: none
    std::thread thread;
  };

  NumberedThreads() = default;
  void serve(Worker& worker);

  std::mutex mutex_;
  std::condition_variable begun_;  // somebody has work, or all are to end
  std::condition_variable done_;
  std::size_t running_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace dsv4rt

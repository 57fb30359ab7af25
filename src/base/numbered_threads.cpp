#include "base/numbered_threads.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace dsv4rt {

Result<std::unique_ptr<NumberedThreads>> NumberedThreads::create(std::size_t threads) {
  std::unique_ptr<NumberedThreads> made(new NumberedThreads);
  while (made->workers_.size() < threads) {
    Worker& worker = *made->workers_.emplace_back(std::make_unique<Worker>());
    try {
      worker.thread = std::thread([&team = *made, &worker] { team.serve(worker); });
    } catch (const std::system_error& error) {
      return Status{StatusCode::kResourceExhausted,
                    "a thread for each of " + std::to_string(threads) + " engines: " + error.code().message()};
    }
  }
  return made;
}

NumberedThreads::~NumberedThreads() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void NumberedThreads::start(std::size_t thread, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    Worker& worker = *workers_[thread];
    DSV4RT_CHECK(!worker.work);
    worker.work = std::move(work);
    ++running_;
  }
  begun_.notify_all();
}

void NumberedThreads::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void NumberedThreads::serve(Worker& worker) {
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return ending_ || worker.work; });
    if (!worker.work) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      worker.work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    worker.work = nullptr;
    if (failure_ == nullptr) failure_ = failure;
    --running_;
    done_.notify_all();
  }
}

}  // namespace dsv4rt

#include "backend/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>

#if defined(DSV4RT_PARALLEL_STD_THREADS)
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>
#endif

namespace dsv4rt::cpu {
namespace {

// First item of worker `worker`: contiguous ranges whose sizes differ by at most one.
std::int64_t range_begin(std::int64_t items, std::int64_t workers, std::int64_t worker) {
  return items / workers * worker + std::min(items % workers, worker);
}

// The ranges of one call and what their workers threw.
class Round {
 public:
  using Trampoline = void (*)(const void* body, std::int64_t begin, std::int64_t end, int worker);
  Round(std::int64_t items, int workers, Trampoline trampoline, const void* body)
      : items_(items), workers_(workers), trampoline_(trampoline), body_(body) {}

  void work(int worker) noexcept {
    try {
      trampoline_(body_, range_begin(items_, workers_, worker), range_begin(items_, workers_, worker + 1), worker);
    } catch (...) {
      if (!failed_.exchange(true)) thrown_ = std::current_exception();
    }
  }

  // Once every worker is done.
  [[nodiscard]] Status status() const {
    if (thrown_ == nullptr) return {};
    try {
      std::rethrow_exception(thrown_);
    } catch (const std::bad_alloc&) {
      return {StatusCode::kResourceExhausted, "no memory for a worker of the CPU backend"};
    } catch (const std::exception& failure) {
      return {StatusCode::kInternal, failure.what()};
    } catch (...) {
      return {StatusCode::kInternal, "a worker of the CPU backend threw something that is no exception"};
    }
  }

 private:
  std::int64_t items_;
  int workers_;
  Trampoline trampoline_;
  const void* body_;
  std::atomic<bool> failed_ = false;
  std::exception_ptr thrown_;  // exception of the worker that set failed_
};

}  // namespace

#if defined(DSV4RT_PARALLEL_STD_THREADS)
// ThreadSanitizer does not see libgomp's barriers; plain threads keep its reports meaningful. They
// live as long as the team: an operation may take microseconds, and starting threads for each
// would take most of the time.
class WorkerThreads {
 public:
  explicit WorkerThreads(int count) {
    for (int worker = 1; worker <= count; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }
  ~WorkerThreads() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_given_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  // Does worker 0 of the round here and the others on the threads; returns when all are done.
  void run(int workers, Round& round) {
    {
      const std::lock_guard lock(mutex_);
      work_ = &round;
      workers_ = workers;
      running_ = workers - 1;
      ++rounds_;
    }
    work_given_.notify_all();
    round.work(0);
    std::unique_lock lock(mutex_);
    work_done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void serve(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      work_given_.wait(lock, [&] { return stopping_ || (rounds_ != seen && worker < workers_); });
      if (stopping_) return;
      seen = rounds_;
      Round& round = *work_;
      lock.unlock();
      round.work(worker);
      lock.lock();
      if (--running_ == 0) work_done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_given_;
  std::condition_variable work_done_;
  Round* work_ = nullptr;  // the members below belong to it too
  int workers_ = 0;
  int running_ = 0;
  std::uint64_t rounds_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

ThreadTeam::ThreadTeam(int threads)
    : threads_(threads), own_threads_(threads > 1 ? std::make_unique<WorkerThreads>(threads - 1) : nullptr) {}
#else
class WorkerThreads {};

ThreadTeam::ThreadTeam(int threads) : threads_(threads) {}
#endif
ThreadTeam::~ThreadTeam() = default;

Status ThreadTeam::run(std::int64_t items, Trampoline trampoline, const void* body) const {
  if (items <= 0) return {};
  const auto workers = static_cast<int>(std::min<std::int64_t>(threads_, items));
  Round round(items, workers, trampoline, body);
  if (workers == 1) {
    round.work(0);
    return round.status();
  }
#if defined(DSV4RT_PARALLEL_STD_THREADS)
  own_threads_->run(workers, round);
#else
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (int worker = 0; worker < workers; ++worker) round.work(worker);
#endif
  return round.status();
}

}  // namespace dsv4rt::cpu

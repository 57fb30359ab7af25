#include "backend/cpu/parallel.h"

#include <algorithm>

#if defined(DSV4RT_PARALLEL_STD_THREADS)
#include <condition_variable>
#include <functional>
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

  // Calls work(0) here and work(1) to work(workers - 1) on the threads; returns when all are done.
  void run(int workers, const std::function<void(int)>& work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      workers_ = workers;
      running_ = workers - 1;
      ++round_;
    }
    work_given_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    work_done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void serve(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      work_given_.wait(lock, [&] { return stopping_ || (round_ != seen && worker < workers_); });
      if (stopping_) return;
      seen = round_;
      const std::function<void(int)>& work = *work_;
      lock.unlock();
      work(worker);
      lock.lock();
      if (--running_ == 0) work_done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_given_;
  std::condition_variable work_done_;
  const std::function<void(int)>* work_ = nullptr;  // of the round; the members below belong to it too
  int workers_ = 0;
  int running_ = 0;
  std::uint64_t round_ = 0;
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

void ThreadTeam::run(std::int64_t items, Trampoline trampoline, const void* body) const {
  if (items <= 0) return;
  const auto workers = static_cast<int>(std::min<std::int64_t>(threads_, items));
  if (workers == 1) {
    trampoline(body, 0, items, 0);
    return;
  }
  const auto work = [&](int worker) {
    trampoline(body, range_begin(items, workers, worker), range_begin(items, workers, worker + 1), worker);
  };
#if defined(DSV4RT_PARALLEL_STD_THREADS)
  own_threads_->run(workers, work);
#else
#pragma omp parallel for num_threads(workers) schedule(static, 1)
  for (int worker = 0; worker < workers; ++worker) work(worker);
#endif
}

}  // namespace dsv4rt::cpu

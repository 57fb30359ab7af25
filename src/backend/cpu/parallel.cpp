#include "backend/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>

#include "backend/cpu/worker_threads.h"

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

ThreadTeam::ThreadTeam(int threads) : threads_(threads) {
  make_threads();
}
ThreadTeam::~ThreadTeam() = default;

void ThreadTeam::make_threads() const {
  if (threads_ > 1) workers_ = std::make_unique<WorkerThreads>(threads_);
}

int ThreadTeam::running_threads() const noexcept {
  return workers_ == nullptr ? 1 : workers_->workers();
}

Status ThreadTeam::run(std::int64_t items, std::int64_t grain, Trampoline trampoline, const void* body) const {
  if (items <= 0) return {};
  if (workers_ != nullptr && workers_->lost_by_fork()) make_threads();
  const auto workers = static_cast<int>(std::clamp<std::int64_t>(items / grain, 1, running_threads()));
  Round round(items, workers, trampoline, body);
  if (workers == 1) {
    round.work(0);
  } else {
    workers_->run(
        workers, [](void* object, int worker) { static_cast<Round*>(object)->work(worker); }, &round);
  }
  return round.status();
}

}  // namespace dsv4rt::cpu

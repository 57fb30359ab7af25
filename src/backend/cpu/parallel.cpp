#include "backend/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>

#include "backend/cpu/worker_threads.h"

namespace dsv4rt::cpu {
namespace {

// More of them even out how long workers take, and cost more.
constexpr std::int64_t kRangesPerWorker = 8;

// First item of a range: contiguous ranges whose sizes differ by at most one.
std::int64_t range_begin(std::int64_t items, std::int64_t ranges, std::int64_t range) {
  return items / ranges * range + std::min(items % ranges, range);
}

// The ranges of one call and what their workers threw.
class Round {
 public:
  using Trampoline = void (*)(const void* body, std::int64_t begin, std::int64_t end, int worker);
  Round(std::int64_t items, int ranges, Trampoline trampoline, const void* body)
      : items_(items), ranges_(ranges), trampoline_(trampoline), body_(body) {}

  void work(int range, int worker) noexcept {
    try {
      trampoline_(body_, range_begin(items_, ranges_, range), range_begin(items_, ranges_, range + 1), worker);
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
  int ranges_;
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

std::int64_t ThreadTeam::most_ranges() const noexcept {
  return running_threads() == 1 ? 1 : kRangesPerWorker * running_threads();
}

Status ThreadTeam::run(std::int64_t items, std::int64_t grain, Trampoline trampoline, const void* body) const {
  if (items <= 0) return {};
  if (workers_ != nullptr && workers_->lost_by_fork()) make_threads();
  const auto ranges = static_cast<int>(std::clamp<std::int64_t>(items / grain, 1, most_ranges()));
  Round round(items, ranges, trampoline, body);
  if (ranges == 1) {
    round.work(0, 0);
  } else {
    workers_->run(
        ranges, [](void* object, int range, int worker) { static_cast<Round*>(object)->work(range, worker); }, &round);
  }
  return round.status();
}

}  // namespace dsv4rt::cpu

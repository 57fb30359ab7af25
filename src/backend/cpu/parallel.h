// The CPU backend's only source of threads: a fixed partition of independent work items.
#pragma once

#include <cstdint>
#include <memory>

#include "dsv4rt/status.h"

namespace dsv4rt::cpu {

class WorkerThreads;

// A team of worker threads. One thread at a time may issue work to a team.
class ThreadTeam {
 public:
  // threads >= 1.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  // Threads asked for: no worker has a number from here on.
  [[nodiscard]] int threads() const noexcept { return threads_; }
  // Ranges that parallel_for divides work into at most.
  [[nodiscard]] std::int64_t most_ranges() const noexcept;
  // Those that could be started, the caller's included. Fewer take longer for the same results.
  [[nodiscard]] int running_threads() const noexcept;

  // Calls body(begin, end, worker) on ranges that cover [0, items) without overlap, worker in [0, threads). The ranges
  // are fixed, several for every worker; each takes the next one when it has done one, so that a thread that wakes up
  // late or is slowed down by others does less. Items must be independent: which worker runs an item must not change
  // its result. A range has at least `grain` items: so many that waking a thread for them, some 20 microseconds, is
  // worth it.
  //
  // A body may throw: an exception that left a thread of the team would end the process. The other workers
  // finish their ranges, and one of the exceptions becomes the Status: kResourceExhausted where memory ran
  // out, kInternal with its text otherwise.
  template <class Body>
  Status parallel_for(std::int64_t items, const Body& body, std::int64_t grain = 1) const {
    return run(
        items, grain,
        [](const void* object, std::int64_t begin, std::int64_t end, int worker) {
          (*static_cast<const Body*>(object))(begin, end, worker);
        },
        &body);
  }

 private:
  using Trampoline = void (*)(const void* body, std::int64_t begin, std::int64_t end, int worker);
  Status run(std::int64_t items, std::int64_t grain, Trampoline trampoline, const void* body) const;

  void make_threads() const;

  int threads_;
  mutable std::unique_ptr<WorkerThreads> workers_;  // null for a team of one; made again in a forked child
};

}  // namespace dsv4rt::cpu

// The CPU backend's only source of threads: a fixed partition of independent work items.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

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

  [[nodiscard]] int threads() const noexcept { return threads_; }

  // Calls body(begin, end, worker) on ranges that cover [0, items) without overlap, worker in
  // [0, threads). Items must be independent: which worker runs an item must not change its result.
  template <class Body>
  void parallel_for(std::int64_t items, const Body& body) const {
    run(
        items,
        [](const void* object, std::int64_t begin, std::int64_t end, int worker) {
          (*static_cast<const Body*>(object))(begin, end, worker);
        },
        &body);
  }

 private:
  using Trampoline = void (*)(const void* body, std::int64_t begin, std::int64_t end, int worker);
  void run(std::int64_t items, Trampoline trampoline, const void* body) const;

  int threads_;
  std::unique_ptr<WorkerThreads> own_threads_;  // only in builds that run on std::thread instead of OpenMP
};

}  // namespace dsv4rt::cpu

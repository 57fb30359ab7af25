// Threads that wait for work: all of a round, each worker its own part of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace dsv4rt::cpu {

// Processors that this thread may run on: its affinity, not all that the machine has.
int usable_processors() noexcept;

// `workers` - 1 threads beside the caller's. They live as long as the object, since an operation may take
// microseconds, and starting threads for each would take most of the time.
//
// Waiting threads look for work for some microseconds and then sleep: a machine that others use loses
// nothing to a team that has nothing to do. New threads inherit the affinity of the thread that makes them.
//
// Threads do not survive fork(). A child that gives work to a team of its parent gets new ones.
class WorkerThreads {
 public:
  // Threads that the system refuses to start are done without: see workers().
  explicit WorkerThreads(int workers);
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  // Workers that there are, the caller's thread included.
  [[nodiscard]] int workers() const noexcept { return static_cast<int>(threads_->started.size()) + 1; }

  // Calls work(object, worker) once for every worker in [0, workers): 0 on the calling thread. Returns when all are
  // done. `work` must not throw. One thread at a time. workers <= workers().
  using Work = void (*)(void* object, int worker);
  void run(int workers, Work work, void* object);

  // Whether the process is a child that was forked after the threads were made: they are not there.
  [[nodiscard]] bool lost_by_fork() const noexcept;

 private:
  // Apart from the object, so that it can be left behind without taking memory.
  struct Threads {
    std::vector<std::thread> started;
    Threads* next_lost = nullptr;
  };
  void serve(int worker) noexcept;

  // Number of the round and, in the low half, how many workers it has. One word, so that a thread that is late learns
  // whether the round is its business without looking at what the next round may be changing. Workers 0: the end.
  std::atomic<std::uint64_t> round_ = 1;
  std::atomic<int> running_ = 0;  // threads that have not finished the round
  Work work_ = nullptr;           // both are written before round_ and read by its workers alone
  void* object_ = nullptr;
  std::uint64_t process_;  // number of forks between the program's start and the threads
  std::unique_ptr<Threads> threads_ = std::make_unique<Threads>();
};

}  // namespace dsv4rt::cpu

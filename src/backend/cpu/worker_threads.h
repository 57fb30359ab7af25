// Threads that wait for work and share what there is of it.
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
// Waiting threads look for work for some microseconds, a tenth of a millisecond where work has just come that soon, and
// then sleep: a machine that others use loses nothing to a team that has nothing to do. New threads inherit the
// affinity of the thread that makes them.
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

  // Calls work(object, share, worker) once for every share in [0, shares), worker in [0, workers()) being the thread
  // that does it, 0 for the caller's. Returns when all are done. The calling thread begins with share 0, and every
  // thread goes on with those that nobody has taken: nobody waits for a thread that has yet to wake up, which on a
  // shared machine takes longer than a small layer. `work` must not throw. One thread at a time. shares <= kMostShares.
  static constexpr int kMostShares = 0xffff;
  using Work = void (*)(void* object, int share, int worker);
  void run(int shares, Work work, void* object);

  // Whether the process is a child that was forked after the threads were made: they are not there.
  [[nodiscard]] bool lost_by_fork() const noexcept;

 private:
  // Apart from the object, so that it can be left behind without taking memory.
  struct Threads {
    std::vector<std::thread> started;
    Threads* next_lost = nullptr;
  };
  void serve(int worker) noexcept;
  // Does shares that nobody has taken while the round lasts.
  void take_shares(std::uint64_t round, int worker) noexcept;

  // Number of the round that threads wait for; 0: the end.
  std::atomic<std::uint64_t> round_ = 1;
  // The round, how many shares it has, and the next that nobody has taken. One word: a thread that is late takes
  // nothing of a round that is not the one it was woken for.
  std::atomic<std::uint64_t> shares_ = 0;
  std::atomic<int> unfinished_ = 0;  // shares of the round
  // Written before shares_, and read by who has taken a share: until that is finished the round lasts.
  Work work_ = nullptr;
  void* object_ = nullptr;
  bool ends_soon_ = false;  // how the caller's last wait for the others was: wait_while
  std::uint64_t process_;   // number of forks between the program's start and the threads
  std::unique_ptr<Threads> threads_ = std::make_unique<Threads>();
};

}  // namespace dsv4rt::cpu

#include "backend/cpu/worker_threads.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <system_error>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dsv4rt::cpu {
namespace {

// WorkerThreads::shares_: the low half of the round's number, 16 bits of how many shares, 16 bits of the next one.
constexpr int kRoundShift = 32;
constexpr int kCountShift = 16;
constexpr std::uint64_t kShareMask = (std::uint64_t{1} << kCountShift) - 1;
static_assert(kShareMask == WorkerThreads::kMostShares);
constexpr std::uint64_t kRoundMask = (std::uint64_t{1} << kRoundShift) - 1;

// How long a thread looks for what it waits for before it sleeps. Waking up takes some 50 microseconds, longer than
// most pauses between the operations of a small layer; but a thread that looks takes its processor from others, on a
// shared machine from the very one that it waits for. So it looks for longer only where that has just been worth it.
constexpr std::chrono::microseconds kShortLook{5};
constexpr std::chrono::microseconds kLongLook{100};
constexpr int kLooksBetweenClocks = 32;

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until the word is no longer `old`: first awake, then asleep. `soon`: whether the wait before this one was
// shorter than a long look, and afterwards whether this one was.
template <class Word>
Word wait_while(const std::atomic<Word>& word, Word old, bool& soon) noexcept {
  Word now = word.load(std::memory_order_acquire);
  if (now != old) return now;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto longest = soon ? kLongLook : kShortLook;
  do {
    for (int look = 0; look < kLooksBetweenClocks && now == old; ++look) {
      pause_briefly();
      now = word.load(std::memory_order_acquire);
    }
  } while (now == old && Clock::now() - begin < longest);
  if (now == old) {
    word.wait(old, std::memory_order_acquire);
    now = word.load(std::memory_order_acquire);
  }
  soon = Clock::now() - begin < kLongLook;
  return now;
}

// Forks that made this process, counted from the first team on.
std::atomic<std::uint64_t> forks = 0;

std::uint64_t count_forks() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

int usable_processors() noexcept {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  if (sched_getaffinity(0, sizeof(processors), &processors) == 0) return std::max(1, CPU_COUNT(&processors));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more than 1,024 of them
}

WorkerThreads::WorkerThreads(int workers) : process_(count_forks()) {
  threads_->started.reserve(static_cast<std::size_t>(workers - 1));
  try {
    for (int worker = 1; worker < workers; ++worker) threads_->started.emplace_back([this, worker] { serve(worker); });
  } catch (const std::bad_alloc&) {
    // As below.
  } catch (const std::system_error&) {
    // The limit of the process or of the machine; those that run do all the work.
  }
}

WorkerThreads::~WorkerThreads() {
  if (lost_by_fork()) {
    // What is left of a thread in a child can neither be joined nor detached, and std::thread would end the program for
    // either: it stays, in a list that leak checkers find.
    static std::atomic<Threads*> lost = nullptr;
    Threads* left = threads_.release();
    left->next_lost = lost.load(std::memory_order_relaxed);
    while (!lost.compare_exchange_weak(left->next_lost, left)) {
    }
    return;
  }
  round_.store(0, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_->started) thread.join();
}

bool WorkerThreads::lost_by_fork() const noexcept {
  return process_ != forks.load(std::memory_order_relaxed);
}

void WorkerThreads::run(int shares, Work work, void* object) {
  const std::uint64_t round = round_.load(std::memory_order_relaxed) + 1;
  work_ = work;
  object_ = object;
  unfinished_.store(shares, std::memory_order_relaxed);
  shares_.store((round & kRoundMask) << kRoundShift | static_cast<std::uint64_t>(shares) << kCountShift | 1,
                std::memory_order_release);
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  work(object, 0, 0);
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  take_shares(round, 0);
  for (int left = unfinished_.load(std::memory_order_acquire); left != 0;) {
    left = wait_while(unfinished_, left, ends_soon_);
  }
}

void WorkerThreads::take_shares(std::uint64_t round, int worker) noexcept {
  std::uint64_t word = shares_.load(std::memory_order_acquire);
  while (word >> kRoundShift == (round & kRoundMask) && (word & kShareMask) < (word >> kCountShift & kShareMask)) {
    if (!shares_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    work_(object_, static_cast<int>(word & kShareMask), worker);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    word = shares_.load(std::memory_order_acquire);
  }
}

void WorkerThreads::serve(int worker) noexcept {
  bool soon = false;
  for (std::uint64_t seen = 1;;) {
    seen = wait_while(round_, seen, soon);
    if (seen == 0) return;
    take_shares(seen, worker);
  }
}

}  // namespace dsv4rt::cpu

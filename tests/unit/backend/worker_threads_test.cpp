// The team's threads: short rounds, few processors, none to be had, and a child that lost them.
#include "backend/cpu/worker_threads.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <numeric>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "backend/cpu/parallel.h"

namespace dsv4rt::cpu {
namespace {

std::int64_t sum_by(const ThreadTeam& team, std::int64_t items) {
  std::atomic<std::int64_t> sum = 0;
  EXPECT_TRUE(team.parallel_for(items,
                                [&](std::int64_t begin, std::int64_t end, int) {
                                  std::int64_t part = 0;
                                  for (std::int64_t item = begin; item < end; ++item) part += item;
                                  sum += part;
                                })
                  .ok());
  return sum;
}

TEST(WorkerThreads, RoundsOfChangingWidthDoEveryShareOnce) {
  constexpr int kWorkers = 6;
  WorkerThreads threads(kWorkers);
  ASSERT_EQ(threads.workers(), kWorkers);
  for (int round = 0; round < 20000; ++round) {
    const int workers = 1 + round * 7 % kWorkers;
    std::vector<int> calls(kWorkers, 0);
    threads.run(
        workers,
        [](void* object, int share, int) {
          ++(*static_cast<std::vector<int>*>(object))[static_cast<std::size_t>(share)];
        },
        &calls);
    std::vector<int> expected(kWorkers, 0);
    std::fill_n(expected.begin(), workers, 1);
    ASSERT_EQ(calls, expected) << "round " << round;
  }
}

// Rounds after a pause: the threads are asleep by then.
TEST(WorkerThreads, SleepingThreadsAreWoken) {
  const ThreadTeam team(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(sum_by(team, 1000), 499500);
  }
}

// A team with nothing to do uses no processor time.
TEST(WorkerThreads, WaitingThreadsDoNotSpin) {
  const ThreadTeam team(4);
  EXPECT_EQ(sum_by(team, 100), 4950);
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(used() - before, std::chrono::milliseconds(50));
}

TEST(WorkerThreads, ThreadsBelongToTheProcessorsOfTheProcess) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(first), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_processors(), 1);
  {
    const ThreadTeam team(3);
    std::atomic<int> elsewhere = 0;
    EXPECT_TRUE(
        team.parallel_for(300, [&](std::int64_t, std::int64_t, int) { elsewhere += sched_getcpu() == first ? 0 : 1; })
            .ok());
    EXPECT_EQ(elsewhere, 0);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

// ThreadSanitizer keeps signals back from threads that sleep, and ends a forked child that starts threads.
#if !defined(__SANITIZE_THREAD__)
std::atomic<bool> hold = false;
std::atomic<bool> held = false;

// A thread that does not come, here one that a signal's handler holds, is not waited for.
TEST(WorkerThreads, TheCallerDoesWhatNobodyHasBegun) {
  WorkerThreads threads(2);
  struct Meeting {
    std::atomic<bool> begun = false;
    pthread_t other = {};
  } meeting;
  threads.run(
      2,
      [](void* object, int share, int) {
        auto& both = *static_cast<Meeting*>(object);
        if (share == 0) {
          while (!both.begun) std::this_thread::yield();
        } else {
          both.other = pthread_self();
          both.begun = true;
        }
      },
      &meeting);
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) {
    held = true;
    while (hold) sched_yield();
    held = false;
  };
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  hold = true;
  ASSERT_EQ(pthread_kill(meeting.other, SIGUSR1), 0);
  while (!held) std::this_thread::yield();
  for (int round = 0; round < 100; ++round) {
    std::thread::id done_by[2];
    threads.run(
        2,
        [](void* object, int share, int) { static_cast<std::thread::id*>(object)[share] = std::this_thread::get_id(); },
        done_by);
    EXPECT_EQ(done_by[0], std::this_thread::get_id());
    EXPECT_EQ(done_by[1], std::this_thread::get_id());
  }
  hold = false;
  while (held) std::this_thread::yield();
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

// Runs `body` in a forked child, which must end by itself with status 0.
template <class Body>
void in_child(const Body& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST(WorkerThreads, AForkedChildComputes) {
  const ThreadTeam team(4);
  EXPECT_EQ(sum_by(team, 1000), 499500);
  in_child([&] { return sum_by(team, 1000) == 499500 && sum_by(team, 64) == 2016; });
  in_child([&] {
    if (sum_by(team, 10) != 45) return false;
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(sum_by(team, 100) == 4950 ? 0 : 1);
    int status = 1;
    return waitpid(grandchild, &status, 0) == grandchild && status == 0;
  });
  EXPECT_EQ(sum_by(team, 1000), 499500);
}

// A team that the parent used can be destroyed by a child that did not.
TEST(WorkerThreads, AForkedChildMayDestroyTheTeam) {
  auto team = std::make_unique<ThreadTeam>(3);
  EXPECT_EQ(sum_by(*team, 10), 45);
  in_child([&] {
    team.reset();
    return sum_by(ThreadTeam(2), 10) == 45;
  });
  EXPECT_EQ(sum_by(*team, 10), 45);
}

// Threads that cannot be started are done without. The limit counts all threads of the user, and does not bind root.
TEST(WorkerThreads, ThreadsThatCannotStartAreDoneWithout) {
  in_child([] {
    if (geteuid() == 0 && setuid(65534) != 0) return false;
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) return false;
    const ThreadTeam team(8);
    return team.running_threads() == 1 && team.threads() == 8 && sum_by(team, 1000) == 499500;
  });
}

#endif

}  // namespace
}  // namespace dsv4rt::cpu

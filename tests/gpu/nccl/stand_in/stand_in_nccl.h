// A stand-in for NCCL whose ranks are threads of one process: libnccl.so.2 for tests that have one device, or none.
//
// Calls outside of a group, and groups where they end, run at once: the ranks meet, what they were called with is
// matched as NCCL matches it, and bytes are copied. Where ranks were called with what does not go together, or not all
// come, NCCL's kernels would never end: the stream of every rank that is there is then stuck till the communicator is
// aborted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace dsv4rt::test {

struct StandInNccl {
  // How bytes are copied, what waits for a stream's work before and tells that it is stuck, or no longer.
  std::function<void(void* to, const void* from, std::size_t bytes)> copy;
  std::function<void(void* stream)> settle;
  std::function<void(void* stream, bool stuck)> stick;

  // The n-th call of this function from now on, by any thread, fails with ncclSystemError; 0: none.
  std::string failing;
  std::atomic<int> until_failure = 0;

  // What ncclCommAbort takes, having ended the communicator's kernels.
  std::atomic<std::chrono::milliseconds> abort_takes = std::chrono::milliseconds(0);

  std::atomic<int> communicators = 0;  // made and neither destroyed nor aborted to the end
  // Since the beginning.
  std::atomic<int> open_groups = 0;
  std::atomic<int> broadcasts = 0;
  std::atomic<int> messages = 0;  // sends
  std::atomic<int> gathers = 0;
  std::atomic<int> aborted = 0;
  std::atomic<int> most_calls = 0;      // the most that a group had
  std::atomic<std::int64_t> bytes = 0;  // what came to ranks from others
};

// The one that libnccl.so.2 goes by.
StandInNccl& stand_in_nccl();

}  // namespace dsv4rt::test

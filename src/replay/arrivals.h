// Arrivals: which request arrives when.
//
// Open loop: at the log's time stamps divided by `speed`, or every 1/rate seconds, whatever the machine does. Closed
// loop: `concurrency` clients, each of which sends its next request when the one before has ended. A jitter moves an
// arrival by a seeded time in [0, jitter_ms): for logs whose clock is coarse.
//
// A later turn of a session arrives delay_ms after the turn before has ended, and not before its own time stamp if it
// has one. A client of a closed loop stays with its session while turns of it are known. Once a turn failed, later
// ones of its session are `lost`: they arrive, and nobody can answer them.
//
// Reads no further ahead than the order of arrivals demands, so a later turn should stand before requests that arrive
// after it; otherwise it arrives when it has been read. Memory: requests between reading and arrival, at most
// max_pending of them, and some bytes for every session. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/request.h"

namespace dsv4rt::replay {

// The next request in the order of a log; nothing at its end.
using RequestSupply = std::function<Result<std::optional<Request>>()>;
// All of them, one after another.
RequestSupply supply_of(std::vector<Request> requests);

enum class ArrivalMode : std::uint8_t { kTimeStamps, kRate, kClosedLoop };

struct ArrivalOptions {
  ArrivalMode mode = ArrivalMode::kTimeStamps;
  double speed = 1;              // kTimeStamps: 2 is twice as fast
  double rate_per_s = 1;         // kRate
  std::int32_t concurrency = 1;  // kClosedLoop
  double jitter_ms = 0;          // kTimeStamps and kRate
  std::int64_t limit = 0;        // requests read; 0: all
  std::uint64_t seed = 0;
  std::size_t max_pending = 1'000'000;
};

struct Arrival {
  Request request;
  std::int64_t time_ns = 0;
  bool lost = false;
};

class Arrivals {
 public:
  // kInvalidArgument naming the option, its value and what is accepted.
  static Result<Arrivals> create(RequestSupply supply, const ArrivalOptions& options);

  // When the next request arrives; nothing while that depends on one that has not ended, or at the end. Failures are
  // the supply's, kBadInput for a request that has no time to arrive at, kResourceExhausted beyond max_pending.
  Result<std::optional<std::int64_t>> next_time_ns();
  // Whether the end of a request that was read may bring an arrival before next_time_ns(): clients of a closed loop and
  // later turns of sessions wait for it.
  [[nodiscard]] bool depend_on_ends() const noexcept {
    return options_.mode == ArrivalMode::kClosedLoop || !sessions_.empty();
  }
  // That request. Precondition: next_time_ns() gave a time.
  Arrival take();
  // A request that was taken has ended; its session goes on, or its client is free.
  void ended(const Request& request, std::int64_t now_ns, bool answered);

 private:
  struct Session {
    std::int64_t last_end_ns = 0;
    bool busy = false;  // a turn is scheduled or runs
    bool failed = false;
  };
  struct Scheduled {
    std::int64_t time_ns = 0;
    std::int64_t serial = 0;  // read order: equal times keep the log's order
    bool lost = false;
    Request request;
    bool operator>(const Scheduled& other) const noexcept {
      return time_ns != other.time_ns ? time_ns > other.time_ns : serial > other.serial;
    }
  };

  Arrivals(RequestSupply supply, const ArrivalOptions& options);
  Status read_ahead();
  Status read_one();
  Result<std::int64_t> own_time_ns(const Request& request, bool later_turn) const;
  void push(Scheduled scheduled);
  void schedule_first(Request request, std::int64_t time_ns);
  void schedule_turn(Request request, const Session& session);

  RequestSupply supply_;
  ArrivalOptions options_;
  bool exhausted_ = false;
  std::int64_t read_ = 0;
  std::int64_t next_serial_ = 0;
  std::int64_t first_turns_ = 0;    // read so far: what a rate counts
  std::int64_t latest_own_ns_ = 0;  // no first turn that is still unread arrives before
  std::int64_t now_ns_ = 0;         // latest end
  std::int32_t free_clients_ = 0;
  std::size_t turns_waiting_ = 0;
  std::unordered_map<std::int64_t, Session> sessions_;
  std::unordered_map<std::int64_t, std::deque<Request>> later_turns_;  // queued while their session is busy
  std::vector<Scheduled> scheduled_;                                   // a heap, the earliest first
};

}  // namespace dsv4rt::replay

// Which of several machines a request goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dsv4rt/status.h"

namespace dsv4rt::replay {

enum class Route : std::uint8_t {
  kRoundRobin,
  // Where most of its prompt is cached; the least loaded of those where it is equal. A machine that is ahead of the
  // least loaded one by more requests than it runs at a time is passed over: a prompt that all requests begin with
  // would bring them all to one machine.
  kPrefix,
  // The smallest load, of which a waiting request is four times that of a running one, as vLLM's balancer counts.
  kLeastLoaded,
};

// "round-robin", "prefix", "least-loaded"; kInvalidArgument naming these.
Result<Route> route_from_name(std::string_view name);
std::string_view route_name(Route route) noexcept;

struct MachineLoad {
  std::int64_t running = 0;
  std::int64_t waiting = 0;     // preempted ones included
  std::int64_t hit_tokens = 0;  // tokens of the request's prompt in its cache; looked at by kPrefix alone
};

class Router {
 public:
  Router(Route route, std::int32_t max_sequences) : route_(route), max_sequences_(max_sequences) {}

  // The index of a machine; the first one where machines are equal. There is at least one.
  std::size_t choose(std::span<const MachineLoad> machines);
  [[nodiscard]] Route route() const noexcept { return route_; }

 private:
  Route route_;
  std::int64_t max_sequences_;  // most that one machine runs at a time
  std::size_t next_ = 0;
};

}  // namespace dsv4rt::replay

#include "replay/router.h"

#include <array>
#include <string>
#include <utility>

#include "base/message_text.h"

namespace dsv4rt::replay {
namespace {

constexpr std::array<std::pair<std::string_view, Route>, 3> kNames{
    {{"round-robin", Route::kRoundRobin}, {"prefix", Route::kPrefix}, {"least-loaded", Route::kLeastLoaded}}};
constexpr std::int64_t kWaitingWeight = 4;

std::int64_t load_of(const MachineLoad& machine) {
  return machine.running + kWaitingWeight * machine.waiting;
}

std::size_t least_loaded(std::span<const MachineLoad> machines) {
  std::size_t least = 0;
  for (std::size_t i = 1; i < machines.size(); ++i) {
    if (load_of(machines[i]) < load_of(machines[least])) least = i;
  }
  return least;
}

}  // namespace

Result<Route> route_from_name(std::string_view name) {
  for (const auto& [known, route] : kNames) {
    if (name == known) return route;
  }
  return Status{StatusCode::kInvalidArgument,
                "route: " + quote(name) + "; accepted: round-robin, prefix, least-loaded"};
}

std::string_view route_name(Route route) noexcept {
  for (const auto& [name, known] : kNames) {
    if (route == known) return name;
  }
  return "";
}

std::size_t Router::choose(std::span<const MachineLoad> machines) {
  if (route_ == Route::kRoundRobin) return next_++ % machines.size();
  const std::size_t least = least_loaded(machines);
  if (route_ == Route::kLeastLoaded) return least;
  std::size_t chosen = least;
  for (std::size_t i = 0; i < machines.size(); ++i) {
    if (load_of(machines[i]) - load_of(machines[least]) > max_sequences_) continue;
    const bool longer = machines[i].hit_tokens > machines[chosen].hit_tokens;
    const bool equal = machines[i].hit_tokens == machines[chosen].hit_tokens;
    if (longer || (equal && load_of(machines[i]) < load_of(machines[chosen]))) chosen = i;
  }
  return chosen;
}

}  // namespace dsv4rt::replay

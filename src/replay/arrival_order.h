// The arrival times of a log's requests, in the order of its lines.
#pragma once

#include <cstdint>
#include <optional>

#include "dsv4rt/status.h"
#include "replay/record_errors.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

inline double ticks_to_ms(Ticks ticks) {
  return static_cast<double>(ticks) / static_cast<double>(kTicksPerMs);
}

// Parsers ask before they change anything, so that a request which is refused leaves no session behind whose later
// turns would follow nobody.
class ArrivalOrder {
 public:
  // kBadInput if a request cannot arrive then: before the one above it where the log is `ordered`, or more than
  // kMaxTimeMs from the first one.
  Status check(Ticks arrival, bool ordered, RecordErrors& errors) const;
  // Accepts the next request; the time since the one above it, unset for the first.
  std::optional<Ticks> add(Ticks arrival);
  // Of a time that was added.
  [[nodiscard]] double ms_after_first(Ticks arrival) const;

 private:
  std::optional<Ticks> first_;
  Ticks last_ = 0;
};

}  // namespace dsv4rt::replay

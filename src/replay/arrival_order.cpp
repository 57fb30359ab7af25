#include "replay/arrival_order.h"

#include <cmath>
#include <string>

#include "replay/json_fields.h"

namespace dsv4rt::replay {

Status ArrivalOrder::check(Ticks arrival, bool ordered, RecordErrors& errors) const {
  if (!first_) return {};
  const double ms = ticks_to_ms(arrival - *first_);
  const auto refuse = [&](BadReason reason, const std::string& accepted) {
    return errors.refuse_field(reason, "arrival time", std::to_string(ms) + " ms after the first request", accepted);
  };
  if (ordered && arrival < last_) {
    return refuse(BadReason::kTimeOrder, "at least " + std::to_string(ticks_to_ms(last_ - *first_)) +
                                             " ms, the time of the request before it");
  }
  if (std::abs(ms) > kMaxTimeMs) return refuse(BadReason::kOutOfRange, "at most 1e13 ms");
  return {};
}

std::optional<Ticks> ArrivalOrder::add(Ticks arrival) {
  std::optional<Ticks> since;
  if (first_) {
    since = arrival - last_;
  } else {
    first_ = arrival;
  }
  last_ = arrival;
  return since;
}

double ArrivalOrder::ms_after_first(Ticks arrival) const {
  return ticks_to_ms(arrival - *first_);
}

}  // namespace dsv4rt::replay

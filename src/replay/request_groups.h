// Requests of a run in groups, for judging how far its numbers are a matter of chance.
//
// A request is in the same group in every run of its log, whatever it is served by. So the differences between two
// runs, group by group, are differences over the same requests, and their spread says how large a difference of the
// whole can be by the luck of single requests (random groups; src/report/comparison.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "replay/latency_histogram.h"
#include "replay/request_record.h"

namespace dsv4rt::replay {

struct RequestGroup {
  // Percentiles of few requests are coarse anyway.
  static constexpr double kRelativeError = 0.01;

  std::int64_t requests = 0;
  std::int64_t finished = 0;
  std::int64_t rejected = 0;
  std::int64_t kept_service_levels = 0;
  std::int64_t preemptions = 0;
  std::int64_t admitted_input_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t output_tokens = 0;
  LatencyHistogram ttft_ms{kRelativeError};
  LatencyHistogram tpot_ms{kRelativeError};
  LatencyHistogram e2el_ms{kRelativeError};
};

class RequestGroups {
 public:
  static constexpr std::size_t kGroups = 16;

  // A request that has ended.
  void add(const RequestRecord& record, bool kept_service_levels);
  [[nodiscard]] const std::array<RequestGroup, kGroups>& groups() const noexcept { return groups_; }

 private:
  std::array<RequestGroup, kGroups> groups_;
};

}  // namespace dsv4rt::replay

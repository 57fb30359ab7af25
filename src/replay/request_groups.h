// Requests of a run in groups of neighbours, for judging how far its numbers are a matter of chance.
//
// A request is in the same group in every run of its log: groups hold equally many requests that follow each other in
// it. So the differences between two runs, group by group, are differences over the same requests, and since what makes
// latencies differ lasts (a queue that is long stays long), groups of neighbours are nearly independent where single
// requests are not (batch means; src/report/comparison.h). Memory is fixed: groups double in size as requests come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

  void add(const RequestGroup& other);
};

class RequestGroups {
 public:
  static constexpr std::size_t kMostGroups = 32;

  RequestGroups();

  // A request that has ended; in any order.
  void add(const RequestRecord& record, bool kept_service_levels);
  // Group g has the requests with an index from g * size() on. The last one may be smaller.
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] const RequestGroup& operator[](std::size_t group) const { return groups_[group]; }

 private:
  void double_size();

  std::int64_t size_ = 1;
  std::size_t used_ = 0;
  std::vector<RequestGroup> groups_;  // [kMostGroups]
};

}  // namespace dsv4rt::replay

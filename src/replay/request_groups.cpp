#include "replay/request_groups.h"

#include <algorithm>

#include "base/check.h"

namespace dsv4rt::replay {

void RequestGroup::add(const RequestGroup& other) {
  requests += other.requests;
  finished += other.finished;
  rejected += other.rejected;
  kept_service_levels += other.kept_service_levels;
  preemptions += other.preemptions;
  admitted_input_tokens += other.admitted_input_tokens;
  hit_tokens += other.hit_tokens;
  output_tokens += other.output_tokens;
  ttft_ms.add(other.ttft_ms);
  tpot_ms.add(other.tpot_ms);
  e2el_ms.add(other.e2el_ms);
}

RequestGroups::RequestGroups() : groups_(kMostGroups) {}

void RequestGroups::double_size() {
  for (std::size_t g = 0; g < kMostGroups; ++g) {
    RequestGroup merged;
    if (g < kMostGroups / 2) {
      merged = groups_[2 * g];
      merged.add(groups_[2 * g + 1]);
    }
    groups_[g] = std::move(merged);
  }
  size_ *= 2;
  used_ = (used_ + 1) / 2;
}

void RequestGroups::add(const RequestRecord& record, bool kept_service_levels) {
  DSV4RT_CHECK(record.index >= 0);
  while (record.index / size_ >= static_cast<std::int64_t>(kMostGroups)) double_size();
  const auto number = static_cast<std::size_t>(record.index / size_);
  used_ = std::max(used_, number + 1);
  RequestGroup& group = groups_[number];
  group.requests += 1;
  group.finished += record.outcome == RequestOutcome::kFinished ? 1 : 0;
  group.rejected += record.outcome == RequestOutcome::kRejected ? 1 : 0;
  group.kept_service_levels += kept_service_levels ? 1 : 0;
  group.preemptions += record.preemptions;
  group.admitted_input_tokens += record.was_admitted() ? record.input_tokens : 0;
  group.hit_tokens += record.hit_tokens;
  group.output_tokens += record.output_tokens;
  if (record.outcome != RequestOutcome::kFinished) return;
  if (record.has_ttft()) group.ttft_ms.add(record.ttft_ms());
  if (record.has_tpot()) group.tpot_ms.add(record.tpot_ms());
  group.e2el_ms.add(record.e2el_ms());
}

}  // namespace dsv4rt::replay

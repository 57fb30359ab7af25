#include "replay/request_groups.h"

#include "replay/seeded_hash.h"

namespace dsv4rt::replay {

// By hash, so that nothing periodic in a log falls into one group.
void RequestGroups::add(const RequestRecord& record, bool kept_service_levels) {
  RequestGroup& group = groups_[scramble(static_cast<std::uint64_t>(record.index)) % kGroups];
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

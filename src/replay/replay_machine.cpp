#include "replay/replay_machine.h"

namespace dsv4rt::replay {
namespace {

void add_if_known(std::optional<std::int64_t>& sum, const std::optional<std::int64_t>& part) {
  if (part) sum = sum.value_or(0) + *part;
}

}  // namespace

void add(CacheOccupancy& sum, const CacheOccupancy& part) {
  if (sum.roles.empty()) {
    sum = part;
    return;
  }
  for (std::size_t i = 0; i < part.roles.size(); ++i) {
    sum.roles[i].total_blocks += part.roles[i].total_blocks;
    sum.roles[i].live_blocks += part.roles[i].live_blocks;
    sum.roles[i].cached_blocks += part.roles[i].cached_blocks;
    sum.roles[i].reserved_blocks += part.roles[i].reserved_blocks;
  }
  sum.live_sequences += part.live_sequences;
  sum.max_sequences += part.max_sequences;
  sum.kept_states += part.kept_states;
  sum.max_states += part.max_states;
}

void add(ExecutorCounts& sum, const ExecutorCounts& part) {
  add_if_known(sum.extrapolated_steps, part.extrapolated_steps);
  add_if_known(sum.captured_steps, part.captured_steps);
  add_if_known(sum.graph_captures, part.graph_captures);
  sum.saves += part.saves;
  sum.saved_bytes += part.saved_bytes;
  sum.peak_saved_bytes += part.peak_saved_bytes;  // an upper bound: peaks of machines need not coincide
}

void add(PrefixStats& sum, const PrefixStats& part) {
  for (std::int64_t PrefixStats::*const count :
       {&PrefixStats::lookups, &PrefixStats::hit_tokens, &PrefixStats::missed_tokens, &PrefixStats::units_stored,
        &PrefixStats::units_removed_for_space, &PrefixStats::units_removed_by_quota,
        &PrefixStats::units_removed_on_request, &PrefixStats::states_taken, &PrefixStats::states_removed,
        &PrefixStats::states_refused, &PrefixStats::sequences_detached, &PrefixStats::kept_units,
        &PrefixStats::kept_states, &PrefixStats::pinned_units}) {
    sum.*count += part.*count;
  }
}

}  // namespace dsv4rt::replay

// Whether a step's blocks are there, counted as stage_blocks counts them but on nothing of the state's own.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cache/cache_state.h"

namespace dsv4rt {
namespace {

// Follows one pool through the entries of a batch.
class PoolDemand {
 public:
  PoolDemand(const CacheState& state, std::int32_t pool)
      : state_(state),
        group_(state.group_of(pool)),
        allocator_(state.allocators[static_cast<std::size_t>(pool)]),
        member_(std::find(group_.pools().begin(), group_.pools().end(), pool) - group_.pools().begin()),
        reserved_(group_.reserved_blocks()) {}

  void add(const StepSegment& segment) {
    const std::int32_t before = segment.start;
    const std::int32_t after = segment.start + segment.tokens;
    if (group_.rows(before) == group_.rows(after)) return;  // writes no row here
    taken_ += group_.blocks(after) - group_.blocks(before);
    const std::int32_t shared = group_.shared_prefix_blocks(segment.slot);
    const std::int32_t full = group_.full_blocks(before);
    if (group_.tail_in_shared_prefix(before, shared)) taken_ += copies(segment, full);
    const std::int32_t reserve_tokens = state_.sequences[segment.slot].reserve_tokens;
    if (reserve_tokens == 0) return;
    reserved_ += group_.outstanding_reservation(reserve_tokens, after, std::min(shared, full)) -
                 group_.outstanding_reservation(reserve_tokens, before, shared);
  }

  // Blocks taken and still owed to reservations, less those that can be had.
  [[nodiscard]] std::int64_t missing() const noexcept {
    return std::max<std::int64_t>(0, taken_ + reserved_ - allocator_.available());
  }

 private:
  // 1 if the sequence's last block must be copied. Its owners leave one by one, in the order of the batch.
  std::int64_t copies(const StepSegment& segment, std::int32_t column) {
    const BlockId block(group_.table_entry(segment.slot, column)[member_]);
    const std::int32_t row = group_.rows(segment.start) - column * group_.rows_per_block();
    std::int32_t& left = left_[block.value];
    const std::int32_t owners = allocator_.owners(block) - left;
    if (owners == 1 && allocator_.prefix_use(block).rows <= row) return 0;
    if (owners > 1) ++left;
    return 1;
  }

  const CacheState& state_;
  const KvCacheGroup& group_;
  const BlockAllocator& allocator_;
  const std::ptrdiff_t member_;
  std::int64_t taken_ = 0;
  std::int64_t reserved_ = 0;
  std::map<std::int32_t, std::int32_t> left_;  // owners that left a block
};

}  // namespace

std::optional<PoolShortage> shortage_of_step(const CacheState& state, std::span<const StepSegment> segments) {
  std::optional<PoolShortage> shortage;
  // Of all pools: one that the whole batch has enough of may lack blocks for the first entries alone, since the last
  // of several owners of a block needs none for a copy.
  auto first_short = static_cast<std::int32_t>(segments.size());
  std::int32_t shortest = first_short;
  for (std::size_t pool = 0; pool < state.allocators.size(); ++pool) {
    PoolDemand demand(state, static_cast<std::int32_t>(pool));
    std::int32_t entry = -1;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      demand.add(segments[i]);
      if (entry < 0 && demand.missing() > 0) entry = static_cast<std::int32_t>(i);
    }
    if (entry >= 0) first_short = std::min(first_short, entry);
    if (demand.missing() == 0 || entry >= shortest) continue;
    shortest = entry;
    shortage = PoolShortage{.pool = static_cast<std::int32_t>(pool), .missing_blocks = demand.missing(), .entry = 0};
  }
  if (shortage) shortage->entry = first_short;
  return shortage;
}

}  // namespace dsv4rt

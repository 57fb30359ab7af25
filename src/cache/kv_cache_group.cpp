#include "cache/kv_cache_group.h"

#include "cache/block_math.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kLineWords = 64 / sizeof(std::int32_t);

}  // namespace

std::vector<KvCacheGroup> KvCacheGroup::create_all(const CacheLayout& layout, std::int32_t max_sequences,
                                                   std::int64_t max_context_tokens) {
  std::vector<KvCacheGroup> groups;
  for (std::size_t pool = 0; pool < layout.pools().size(); ++pool) {
    const PoolSpec& spec = layout.pools()[pool];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const KvCacheGroup& candidate) {
      return candidate.ratio_ == spec.ratio && candidate.rows_per_block_ == spec.shape.rows;
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), KvCacheGroup(spec.ratio, spec.shape.rows));
      group->columns_ = static_cast<std::int32_t>(block_table_columns(spec, max_context_tokens));
    }
    group->pools_.push_back(static_cast<std::int32_t>(pool));
  }
  for (KvCacheGroup& group : groups) {
    const auto slots = static_cast<std::size_t>(max_sequences);
    const std::size_t table_entries = static_cast<std::size_t>(group.columns_) * group.pools_.size();
    group.slot_stride_ = (ceil_div(table_entries, kLineWords) | 1) * kLineWords;
    group.table_.assign(slots * group.slot_stride_, 0);
    group.shared_prefix_blocks_.assign(slots, 0);
  }
  return groups;
}

}  // namespace dsv4rt

#include "engine/graph_cache.h"

#include <utility>

namespace dsv4rt {

const CapturedWork* GraphCache::find(const GraphKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->work.get();
}

const CapturedWork& GraphCache::insert(const GraphKey& key, std::unique_ptr<CapturedWork> work) {
  if (full() && !entries_.empty()) {
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
    ++evictions_;
  }
  entries_.push_front({.key = key, .work = std::move(work)});
  by_key_.insert_or_assign(key, entries_.begin());
  return *entries_.front().work;
}

}  // namespace dsv4rt

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
  // All memory before the first change: without it the graphs that are there stay.
  std::list<Entry> made;
  made.push_front({.key = key, .work = std::move(work)});
  by_key_.insert_or_assign(key, made.begin());
  const CapturedWork& kept = *made.front().work;
  while (!has_room_for(kept)) drop_oldest();
  nodes_ += kept.nodes();
  entries_.splice(entries_.begin(), made);
  return kept;
}

void GraphCache::drop_oldest() {
  const Entry& oldest = entries_.back();
  nodes_ -= oldest.work->nodes();
  by_key_.erase(oldest.key);
  entries_.pop_back();
  ++evictions_;
}

}  // namespace dsv4rt

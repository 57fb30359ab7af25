// The CPU backend's only source of threads: a fixed partition of independent work items.
#pragma once

#include <cstdint>
#include <functional>

namespace dsv4rt::cpu {

// Number of threads parallel_for uses; at least 1. Set once before work starts.
void set_thread_count(int threads);
int thread_count();

// Calls body(begin, end, worker) on disjoint ranges that cover [0, items). `grain` items are never
// split. Items must be independent: which worker runs an item must not change its result.
void parallel_for(std::int64_t items, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end, int worker)>& body);

}  // namespace dsv4rt::cpu

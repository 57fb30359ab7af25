// Captured steps by shape, the least recently used one leaving when the limit is reached.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "backend/backend.h"

namespace dsv4rt {

// Everything a captured step bakes in besides what is fixed for the engine's life.
struct GraphKey {
  std::int32_t tokens = 0;
  std::int32_t longest_entry = 0;
  std::int32_t context_end = 0;
  const void* input = nullptr;  // x of the first layer
  std::uint64_t hook = 0;       // what the caller's hook enqueues

  auto operator<=>(const GraphKey&) const = default;
};

class GraphCache {
 public:
  explicit GraphCache(std::size_t limit = 0) : limit_(limit) {}

  // Null when there is none. Marks it as used.
  const CapturedWork* find(const GraphKey& key);
  // Keeps the work and returns it. Another may leave: the caller makes sure that it does not run.
  const CapturedWork& insert(const GraphKey& key, std::unique_ptr<CapturedWork> work);

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool full() const noexcept { return entries_.size() >= limit_; }
  [[nodiscard]] std::int64_t evictions() const noexcept { return evictions_; }

 private:
  struct Entry {
    GraphKey key;
    std::unique_ptr<CapturedWork> work;
  };
  std::size_t limit_;
  std::int64_t evictions_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::map<GraphKey, std::list<Entry>::iterator> by_key_;
};

}  // namespace dsv4rt

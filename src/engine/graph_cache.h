// Captured steps by shape, the least recently used ones leaving when a limit is reached.
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

// Device memory that a node of a captured graph is taken to need, which the driver does not tell: twice what graphs of
// 28 nodes took on an H200 with driver 580 (9.4 KB a node; a test holds it against the device's).
inline constexpr std::int64_t kGraphNodeBytes = std::int64_t{20} << 10;

class GraphCache {
 public:
  explicit GraphCache(std::size_t limit = 0, std::int64_t max_bytes = INT64_MAX)
      : limit_(limit), max_bytes_(max_bytes) {}

  // Null when there is none. Marks it as used.
  const CapturedWork* find(const GraphKey& key);
  // Keeps the work and returns it; find(key) gave null. Others may leave: the caller makes sure that they do not run.
  // A work that is larger than the limit of bytes is kept too, alone.
  const CapturedWork& insert(const GraphKey& key, std::unique_ptr<CapturedWork> work);

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  // What the kept graphs take by the estimate of kGraphNodeBytes.
  [[nodiscard]] std::int64_t bytes() const noexcept { return nodes_ * kGraphNodeBytes; }
  // Whether nothing has to leave for the work.
  [[nodiscard]] bool has_room_for(const CapturedWork& work) const noexcept {
    return entries_.empty() || (entries_.size() < limit_ && work.nodes() <= max_bytes_ / kGraphNodeBytes - nodes_);
  }
  [[nodiscard]] std::int64_t evictions() const noexcept { return evictions_; }

 private:
  struct Entry {
    GraphKey key;
    std::unique_ptr<CapturedWork> work;
  };
  void drop_oldest();

  std::size_t limit_;
  std::int64_t max_bytes_;
  std::int64_t nodes_ = 0;  // nodes of all entries together
  std::int64_t evictions_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::map<GraphKey, std::list<Entry>::iterator> by_key_;
};

}  // namespace dsv4rt

#include "cache/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>

#include "base/check.h"

namespace dsv4rt {

PrefixTree::PrefixTree(std::int32_t capacity, std::int32_t unit_tokens, std::int32_t ids, PrefixEviction eviction)
    : unit_tokens_(unit_tokens), ids_(ids), eviction_(eviction) {
  DSV4RT_CHECK(capacity >= 2 && unit_tokens >= 1 && ids >= 0);
  const auto nodes = static_cast<std::size_t>(capacity);
  nodes_.resize(nodes);
  token_ids_.resize(nodes * static_cast<std::size_t>(unit_tokens));
  block_ids_.resize(nodes * static_cast<std::size_t>(ids));
  buckets_.assign(std::bit_ceil(nodes), kNoPrefixNode);
  heap_.reserve(nodes);
  for (PrefixNodeId node = capacity - 1; node >= 0; --node) {
    nodes_[index(node)].next_in_bucket = first_free_;
    first_free_ = node;
  }
}

std::span<const std::int32_t> PrefixTree::token_ids(PrefixNodeId node) const noexcept {
  if (nodes_[index(node)].depth == 0) return {};
  const auto tokens = static_cast<std::size_t>(unit_tokens_);
  return {token_ids_.data() + index(node) * tokens, tokens};
}

// Digests are uniform: any of their bits serve.
std::size_t PrefixTree::bucket(const PrefixDigest& digest) const noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, digest.data(), sizeof(bits));
  return static_cast<std::size_t>(bits) & (buckets_.size() - 1);
}

PrefixNodeId PrefixTree::find_root(const PrefixDigest& digest) const noexcept {
  for (PrefixNodeId node = buckets_[bucket(digest)]; node != kNoPrefixNode; node = nodes_[index(node)].next_in_bucket) {
    if (nodes_[index(node)].depth == 0 && nodes_[index(node)].digest == digest) return node;
  }
  return kNoPrefixNode;
}

PrefixNodeId PrefixTree::find_child(PrefixNodeId parent, const PrefixDigest& digest,
                                    std::span<const std::int32_t> token_ids) const noexcept {
  for (PrefixNodeId node = buckets_[bucket(digest)]; node != kNoPrefixNode; node = nodes_[index(node)].next_in_bucket) {
    const PrefixNode& candidate = nodes_[index(node)];
    if (candidate.parent != parent || candidate.digest != digest) continue;
    const std::span<const std::int32_t> known = this->token_ids(node);
    if (std::equal(known.begin(), known.end(), token_ids.begin(), token_ids.end())) return node;
  }
  return kNoPrefixNode;
}

PrefixNodeId PrefixTree::take(const PrefixDigest& digest, PrefixNodeId parent) {
  DSV4RT_CHECK(!full());
  const PrefixNodeId node = first_free_;
  PrefixNode& taken = nodes_[index(node)];
  first_free_ = taken.next_in_bucket;
  PrefixNodeId& bucket_head = buckets_[bucket(digest)];
  taken = PrefixNode{.digest = digest, .parent = parent, .last_used = ++clock_, .next_in_bucket = bucket_head};
  bucket_head = node;
  ++size_;
  return node;
}

PrefixNodeId PrefixTree::insert_root(const PrefixDigest& digest) {
  const PrefixNodeId node = take(digest, kNoPrefixNode);
  nodes_[index(node)].root = node;
  ++roots_;
  settle(node);
  return node;
}

PrefixNodeId PrefixTree::insert(PrefixNodeId parent, const PrefixDigest& digest,
                                std::span<const std::int32_t> token_ids) {
  DSV4RT_CHECK(contains(parent) && token_ids.size() == static_cast<std::size_t>(unit_tokens_));
  const PrefixNodeId node = take(digest, parent);
  PrefixNode& inserted = nodes_[index(node)];
  PrefixNode& before = nodes_[index(parent)];
  inserted.root = before.root;
  inserted.depth = before.depth + 1;
  ++before.children;
  ++nodes_[index(before.root)].units_of_root;
  std::copy(token_ids.begin(), token_ids.end(),
            token_ids_.begin() + static_cast<std::ptrdiff_t>(index(node) * token_ids.size()));
  settle(parent);
  settle(node);
  return node;
}

void PrefixTree::remove(PrefixNodeId node) {
  PrefixNode& leaving = nodes_[index(node)];
  DSV4RT_CHECK(contains(node) && leaving.children == 0 && leaving.users == 0 && leaving.pins == 0 &&
               leaving.state == kNoBoundaryState);
  PrefixNodeId* link = &buckets_[bucket(leaving.digest)];
  while (*link != node) link = &nodes_[index(*link)].next_in_bucket;
  *link = leaving.next_in_bucket;
  const PrefixNodeId parent = leaving.parent;
  if (parent != kNoPrefixNode) {
    PrefixNode& before = nodes_[index(parent)];
    --before.children;
    before.last_used = std::max(before.last_used, leaving.last_used);
    --nodes_[index(leaving.root)].units_of_root;
  } else {
    --roots_;
  }
  leaving.root = kNoPrefixNode;
  settle(node);  // out of the heap: it is no node any more
  leaving = PrefixNode{.next_in_bucket = first_free_};
  first_free_ = node;
  --size_;
  if (parent != kNoPrefixNode) settle(parent);
}

// ---- Which leaf leaves first --------------------------------------------------------------------

std::uint64_t PrefixTree::usefulness(PrefixNodeId node) const noexcept {
  const PrefixNode& record = nodes_[index(node)];
  const bool credit = eviction_ == PrefixEviction::kUseful && record.reused;
  return record.last_used + (credit ? static_cast<std::uint64_t>(nodes_.size()) : 0);
}

bool PrefixTree::leaves_before(PrefixNodeId a, PrefixNodeId b) const noexcept {
  const auto order = [&](PrefixNodeId node) {
    const PrefixNode& record = nodes_[index(node)];
    const bool useless = eviction_ == PrefixEviction::kUseful && record.state == kNoBoundaryState;
    return std::tuple(record.users > 0, !useless, usefulness(node), node);
  };
  return order(a) < order(b);
}

PrefixNodeId PrefixTree::least_useful_of(PrefixNodeId root) const noexcept {
  PrefixNodeId least = kNoPrefixNode;
  for (const PrefixNodeId node : heap_) {
    if (nodes_[index(node)].root != root || node == root) continue;
    if (least == kNoPrefixNode || leaves_before(node, least)) least = node;
  }
  return least;
}

void PrefixTree::place(std::size_t position, PrefixNodeId node) noexcept {
  heap_[position] = node;
  nodes_[index(node)].heap_position = static_cast<std::int32_t>(position);
}

void PrefixTree::sift_up(std::size_t position) noexcept {
  const PrefixNodeId node = heap_[position];
  while (position > 0) {
    const std::size_t above = (position - 1) / 2;
    if (!leaves_before(node, heap_[above])) break;
    place(position, heap_[above]);
    position = above;
  }
  place(position, node);
}

void PrefixTree::sift_down(std::size_t position) noexcept {
  const PrefixNodeId node = heap_[position];
  while (2 * position + 1 < heap_.size()) {
    std::size_t below = 2 * position + 1;
    if (below + 1 < heap_.size() && leaves_before(heap_[below + 1], heap_[below])) ++below;
    if (!leaves_before(heap_[below], node)) break;
    place(position, heap_[below]);
    position = below;
  }
  place(position, node);
}

// A root may leave when nothing is below it and no sequence has its salt.
void PrefixTree::settle(PrefixNodeId node) noexcept {
  PrefixNode& record = nodes_[index(node)];
  const bool unused_root = record.depth == 0 && record.users == 0;
  const bool may_leave =
      record.root != kNoPrefixNode && record.children == 0 && record.pins == 0 && (record.depth > 0 || unused_root);
  const bool listed = record.heap_position >= 0;
  if (may_leave && !listed) {
    heap_.push_back(node);
    record.heap_position = static_cast<std::int32_t>(heap_.size() - 1);
  }
  if (!may_leave && listed) {
    const auto position = static_cast<std::size_t>(record.heap_position);
    const PrefixNodeId last = heap_.back();
    heap_.pop_back();
    record.heap_position = -1;
    if (last == node) return;
    place(position, last);
    sift_up(position);
    sift_down(static_cast<std::size_t>(nodes_[index(last)].heap_position));
    return;
  }
  if (!may_leave) return;
  sift_up(static_cast<std::size_t>(record.heap_position));
  sift_down(static_cast<std::size_t>(record.heap_position));
}

// ---- What is known of a node --------------------------------------------------------------------

void PrefixTree::touch(PrefixNodeId node) noexcept {
  nodes_[index(node)].last_used = ++clock_;
  settle(node);
}

void PrefixTree::mark_reused(PrefixNodeId node) noexcept {
  for (; nodes_[index(node)].parent != kNoPrefixNode && !nodes_[index(node)].reused;
       node = nodes_[index(node)].parent) {
    nodes_[index(node)].reused = true;
    settle(node);
  }
}

void PrefixTree::add_users(PrefixNodeId node, std::int32_t change) noexcept {
  nodes_[index(node)].users += change;
  settle(node);
}

void PrefixTree::add_pins(PrefixNodeId node, std::int32_t change) noexcept {
  nodes_[index(node)].own_pins += change;
  for (; node != kNoPrefixNode; node = nodes_[index(node)].parent) {
    nodes_[index(node)].pins += change;
    settle(node);
  }
}

void PrefixTree::set_state(PrefixNodeId node, std::int32_t state, bool kept) noexcept {
  nodes_[index(node)].state = state;
  nodes_[index(node)].state_kept = kept && state != kNoBoundaryState;
  settle(node);
}

// ---- Checks -------------------------------------------------------------------------------------

Status PrefixTree::check() const {
  const auto broken = [](PrefixNodeId node, const std::string& what) {
    return Status(StatusCode::kInternal, "prefix node " + std::to_string(node) + " " + what);
  };
  std::vector<std::int32_t> children(nodes_.size(), 0);
  std::vector<std::int32_t> pins(nodes_.size(), 0);
  std::vector<std::int32_t> units(nodes_.size(), 0);
  std::int32_t present = 0;
  for (PrefixNodeId node = 0; node < capacity(); ++node) {
    if (!contains(node)) continue;
    const PrefixNode& record = nodes_[index(node)];
    ++present;
    if (record.depth == 0) {
      if (find_root(record.digest) != node) return broken(node, "is a root that its digest does not find");
    } else {
      if (!contains(record.parent) || nodes_[index(record.parent)].depth + 1 != record.depth ||
          nodes_[index(record.parent)].root != record.root) {
        return broken(node, "does not follow its parent");
      }
      ++children[index(record.parent)];
      ++units[index(record.root)];
      if (find_child(record.parent, record.digest, token_ids(node)) != node) {
        return broken(node, "is not found by its digest and token ids");
      }
    }
    for (PrefixNodeId above = node; above != kNoPrefixNode; above = nodes_[index(above)].parent) {
      pins[index(above)] += record.own_pins;
    }
  }
  if (present != size_) return broken(-1, "count: " + std::to_string(present) + ", known are " + std::to_string(size_));
  std::size_t listed = 0;
  for (PrefixNodeId node = 0; node < capacity(); ++node) {
    if (!contains(node)) continue;
    const PrefixNode& record = nodes_[index(node)];
    if (record.children != children[index(node)]) return broken(node, "miscounts its children");
    if (record.pins != pins[index(node)]) return broken(node, "miscounts its pins");
    if (record.depth == 0 && record.units_of_root != units[index(node)]) return broken(node, "miscounts its units");
    const bool may_leave = record.children == 0 && record.pins == 0 && (record.depth > 0 || record.users == 0);
    if (may_leave != (record.heap_position >= 0)) return broken(node, "is wrongly in or out of the heap");
    if (!may_leave) continue;
    ++listed;
    const auto position = static_cast<std::size_t>(record.heap_position);
    if (position >= heap_.size() || heap_[position] != node ||
        (position > 0 && leaves_before(node, heap_[(position - 1) / 2]))) {
      return broken(node, "is out of order in the heap");
    }
  }
  if (listed != heap_.size()) return broken(-1, "the heap lists nodes that are none");
  return {};
}

}  // namespace dsv4rt

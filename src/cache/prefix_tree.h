// PrefixTree: cached units in a tree, found by digest, and which of its leaves is the least useful.
//
// A root stands for a salt and holds nothing. Every other node is one unit of token ids after its parent's. Only
// leaves leave the tree, so a node's whole path is there as long as the node is. The tree knows node numbers, not
// blocks: what a node's ids and state mean is prefix_cache.h's business. It takes all memory when it is made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4rt/prefix_cache.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

using PrefixNodeId = std::int32_t;
inline constexpr PrefixNodeId kNoPrefixNode = -1;
inline constexpr std::int32_t kNoBoundaryState = -1;

struct PrefixNode {
  PrefixDigest digest{};
  PrefixNodeId parent = kNoPrefixNode;  // none for a root
  PrefixNodeId root = kNoPrefixNode;
  std::int32_t depth = 0;     // units up to here; 0 for a root
  std::int32_t children = 0;  // nodes whose parent this is
  std::int32_t users = 0;     // live sequences that continue here
  std::int32_t own_pins = 0;  // pins of this very node
  std::int32_t pins = 0;      // pins of this node and of all below it
  std::int32_t state = kNoBoundaryState;
  bool state_kept = false;  // for its own sake, not only until its sequence takes the next one
  bool reused = false;      // some sequence began here or below
  std::uint64_t last_used = 0;
  std::int32_t heap_position = -1;              // -1: not among the leaves that may leave
  PrefixNodeId next_in_bucket = kNoPrefixNode;  // or the next free node
  std::int32_t units_of_root = 0;               // nodes below it, if it is a root
};

class PrefixTree {
 public:
  // Room for `capacity` nodes, roots included, each with `ids` block ids.
  PrefixTree(std::int32_t capacity, std::int32_t unit_tokens, std::int32_t ids,
             PrefixEviction eviction = PrefixEviction::kUseful);

  [[nodiscard]] std::int32_t unit_tokens() const noexcept { return unit_tokens_; }
  [[nodiscard]] std::int32_t capacity() const noexcept { return static_cast<std::int32_t>(nodes_.size()); }
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  [[nodiscard]] std::int32_t units() const noexcept { return size_ - roots_; }
  [[nodiscard]] bool full() const noexcept { return size_ == capacity(); }

  [[nodiscard]] const PrefixNode& operator[](PrefixNodeId node) const noexcept { return nodes_[index(node)]; }
  [[nodiscard]] bool contains(PrefixNodeId node) const noexcept {
    return node >= 0 && node < capacity() && nodes_[index(node)].root != kNoPrefixNode;
  }
  // Token ids of a node's unit; empty for a root.
  [[nodiscard]] std::span<const std::int32_t> token_ids(PrefixNodeId node) const noexcept;
  [[nodiscard]] std::span<std::int32_t> block_ids(PrefixNodeId node) noexcept {
    return {block_ids_.data() + index(node) * static_cast<std::size_t>(ids_), static_cast<std::size_t>(ids_)};
  }
  [[nodiscard]] std::span<const std::int32_t> block_ids(PrefixNodeId node) const noexcept {
    return {block_ids_.data() + index(node) * static_cast<std::size_t>(ids_), static_cast<std::size_t>(ids_)};
  }

  // The root of a salt's digest, or none.
  [[nodiscard]] PrefixNodeId find_root(const PrefixDigest& digest) const noexcept;
  // The child of `parent` with this digest and these token ids, or none. Ids are compared too: a digest is not taken
  // for proof.
  [[nodiscard]] PrefixNodeId find_child(PrefixNodeId parent, const PrefixDigest& digest,
                                        std::span<const std::int32_t> token_ids) const noexcept;

  // Precondition: not full().
  PrefixNodeId insert_root(const PrefixDigest& digest);
  PrefixNodeId insert(PrefixNodeId parent, const PrefixDigest& digest, std::span<const std::int32_t> token_ids);
  // Precondition: no children, users or state. Its parent is used no less recently than it was.
  void remove(PrefixNodeId node);

  // The leaf that may leave first: not pinned, of `root` if one is given; none if there is no such leaf.
  // Those that a sequence continues from come last, and in both halves those without a state first, since nothing can
  // begin there (PrefixEviction::kUseful only); then by usefulness(). Linear in the leaves with a root.
  [[nodiscard]] PrefixNodeId least_useful() const noexcept { return heap_.empty() ? kNoPrefixNode : heap_[0]; }
  [[nodiscard]] PrefixNodeId least_useful_of(PrefixNodeId root) const noexcept;
  // Recency in insertions and hits. With PrefixEviction::kUseful a node that was reused counts as used one turnover
  // of the whole tree later: a prefix that many share outlives any number of prompts that come once.
  [[nodiscard]] std::uint64_t usefulness(PrefixNodeId node) const noexcept;

  void touch(PrefixNodeId node) noexcept;
  void mark_reused(PrefixNodeId node) noexcept;
  void add_users(PrefixNodeId node, std::int32_t change) noexcept;
  // Of the node and, for `pins`, of its path. Gives nothing away about blocks.
  void add_pins(PrefixNodeId node, std::int32_t change) noexcept;
  void set_state(PrefixNodeId node, std::int32_t state, bool kept) noexcept;
  void keep_state(PrefixNodeId node) noexcept { nodes_[index(node)].state_kept = true; }

  // kInternal naming what disagrees: links, counts, index or heap.
  [[nodiscard]] Status check() const;

 private:
  static std::size_t index(PrefixNodeId node) noexcept { return static_cast<std::size_t>(node); }
  [[nodiscard]] std::size_t bucket(const PrefixDigest& digest) const noexcept;
  [[nodiscard]] PrefixNodeId take(const PrefixDigest& digest, PrefixNodeId parent);
  // Puts the node where it belongs in the heap, in or out of it, after anything that its order depends on changed.
  void settle(PrefixNodeId node) noexcept;
  [[nodiscard]] bool leaves_before(PrefixNodeId a, PrefixNodeId b) const noexcept;
  void place(std::size_t position, PrefixNodeId node) noexcept;
  void sift_up(std::size_t position) noexcept;
  void sift_down(std::size_t position) noexcept;

  std::int32_t unit_tokens_;
  std::int32_t ids_;
  PrefixEviction eviction_;
  std::int32_t size_ = 0;
  std::int32_t roots_ = 0;
  std::uint64_t clock_ = 0;
  PrefixNodeId first_free_ = kNoPrefixNode;
  std::vector<PrefixNode> nodes_;
  std::vector<std::int32_t> token_ids_;  // [nodes][unit_tokens]
  std::vector<std::int32_t> block_ids_;  // [nodes][ids]
  std::vector<PrefixNodeId> buckets_;    // a power of two
  std::vector<PrefixNodeId> heap_;       // leaves that may leave, least useful first
};

}  // namespace dsv4rt

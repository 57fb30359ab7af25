// Steps along the tree: new units enter it, boundaries get their states.
//
// A boundary that a step passes can be copied out of the rings after the step if these still hold what it needs. Those
// of a long step do not: the state is then put together from the rings as they are before the step and from what the
// layers compute (PlannedCapture).
#include <algorithm>

#include "base/check.h"
#include "cache/cache_state.h"
#include "cache/prefix_cache.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kNotKept = static_cast<std::size_t>(-1);

}  // namespace

// A prompt that comes again hits at most the last boundary below its last token: that token has to be run.
PrefixCache::Wanted PrefixCache::wanted(const PrefixTrack& track, std::int64_t boundary,
                                        std::int64_t end) const noexcept {
  const std::int64_t unit = tree_.unit_tokens();
  const PrefixPolicy& policy = track.policy;
  if (policy.interval_tokens > 0) {
    const std::int64_t interval = (policy.interval_tokens + unit - 1) / unit * unit;
    if (boundary % interval == 0) return Wanted::kKept;
  }
  const std::int64_t prompt_end = (std::max(track.prompt_tokens, 1) - 1) / unit * unit;
  if (policy.prompt_end && boundary == prompt_end) return Wanted::kKept;
  const bool last = boundary == end / unit * unit;
  return policy.output_end && last && end >= track.prompt_tokens ? Wanted::kUntilTheNext : Wanted::kNo;
}

void PrefixCache::begin_step(CacheState& cache, std::span<const StepEntry> batch,
                             std::span<const StepSegment> segments) {
  step_ids_.clear();
  first_step_id_.clear();
  captures_.clear();
  const std::int32_t unit = tree_.unit_tokens();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const StepSegment& segment = segments[i];
    const PrefixTrack& track = tracks_[static_cast<std::size_t>(segment.slot)];
    const bool kept = track.node != kNoPrefixNode && batch[i].token_ids != nullptr;
    first_step_id_.push_back(kept ? step_ids_.size() : kNotKept);
    if (!kept) continue;
    step_ids_.insert(step_ids_.end(), batch[i].token_ids, batch[i].token_ids + segment.tokens);
    const std::int32_t end = segment.start + segment.tokens;
    const std::int32_t high_water = std::max(cache.sequences[segment.slot].high_water, end);
    // Where the sequence ends if all of its drafts are rejected.
    const std::int32_t least = std::max(segment.start, end - cache.layout.formats().draft_budget_tokens - 1);
    // From the last one on: where states are scarce, the deepest boundary is worth most.
    const auto first = static_cast<std::ptrdiff_t>(captures_.size());
    for (std::int32_t boundary = end / unit * unit; boundary > segment.start; boundary -= unit) {
      if (cache.reachable(boundary, high_water)) continue;
      if (wanted(track, boundary, end) == Wanted::kNo && wanted(track, boundary, least) == Wanted::kNo) continue;
      const std::int32_t state = take_state();
      if (state == kNoBoundaryState) break;
      captures_.push_back({.segment = static_cast<std::int32_t>(i),
                           .slot = segment.slot,
                           .start = segment.start,
                           .boundary = boundary,
                           .state = state});
    }
    std::reverse(captures_.begin() + first, captures_.end());
  }
}

void PrefixCache::commit_segment(CacheState& cache, std::size_t i, const StepSegment& segment, std::int32_t accepted) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(segment.slot)];
  if (track.node == kNoPrefixNode || accepted == 0) return;
  if (first_step_id_[i] == kNotKept) return detach(segment.slot);
  const auto unit = static_cast<std::size_t>(tree_.unit_tokens());
  const std::int64_t end = std::int64_t{segment.start} + accepted;
  std::span<const std::int32_t> ids(step_ids_.data() + first_step_id_[i], static_cast<std::size_t>(accepted));
  std::int32_t* pending = pending_ids(segment.slot);
  while (static_cast<std::size_t>(track.pending) + ids.size() >= unit) {
    const std::size_t taken = unit - static_cast<std::size_t>(track.pending);
    std::copy_n(ids.begin(), taken, pending + track.pending);
    ids = ids.subspan(taken);
    track.pending = 0;
    if (!advance(cache, segment.slot, {pending, unit})) return;
    settle_state(cache, i, segment.slot, std::int64_t{tree_[track.node].depth} * tree_.unit_tokens(), end);
  }
  std::copy(ids.begin(), ids.end(), pending + track.pending);
  track.pending += static_cast<std::int32_t>(ids.size());
}

// The sequence has one unit more; whether it is kept.
bool PrefixCache::advance(CacheState& cache, std::int32_t slot, std::span<const std::int32_t> unit_ids) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  const PrefixNodeId before = track.node;
  const PrefixDigest digest = hasher_.unit(tree_[before].digest, unit_ids);
  PrefixNodeId next = tree_.find_child(before, digest, unit_ids);
  if (next == kNoPrefixNode) {
    if (!make_room(cache, tree_[before].root)) {
      detach(slot);
      return false;
    }
    next = insert(cache, slot, before, digest, unit_ids);
  } else {
    tree_.touch(next);
  }
  track.node = next;
  tree_.add_users(next, 1);
  tree_.add_users(before, -1);
  return true;
}

// The unit that the sequence has just come to gets its state, if the policy wants one and it has none.
void PrefixCache::settle_state(CacheState& cache, std::size_t segment, std::int32_t slot, std::int64_t boundary,
                               std::int64_t end) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  const Wanted want = wanted(track, boundary, end);
  const PrefixNodeId node = track.node;
  const auto captured = std::find_if(captures_.begin(), captures_.end(), [&](const PlannedCapture& capture) {
    return capture.segment == static_cast<std::int32_t>(segment) && capture.boundary == boundary;
  });
  if (want == Wanted::kNo) return;
  if (tree_[node].state != kNoBoundaryState) {
    if (want == Wanted::kKept) tree_.keep_state(node);
    return;
  }
  if (captured != captures_.end()) {
    set_state(node, captured->state, want == Wanted::kKept);
    captures_.erase(captured);
  } else if (!copy_state(cache, slot, node, want == Wanted::kKept)) {
    return;
  }
  if (want == Wanted::kUntilTheNext) roll(track, node);
}

// The node's boundary out of the rings, if they serve it and a state can be had.
bool PrefixCache::copy_state(CacheState& cache, std::int32_t slot, PrefixNodeId node, bool kept) {
  const std::int32_t boundary = tree_[node].depth * tree_.unit_tokens();
  if (boundary == 0 || !cache.reachable(boundary, cache.sequences[slot].high_water)) return false;
  const std::int32_t state = take_state();
  if (state == kNoBoundaryState) return false;
  boundary_copies_.push_back({.slot = slot, .state = state, .boundary = boundary});
  set_state(node, state, kept);
  return true;
}

// The state before was there only until this one.
void PrefixCache::roll(PrefixTrack& track, PrefixNodeId node) {
  const PrefixNodeId before = std::exchange(track.rolling, node);
  if (before == kNoPrefixNode || before == node) return;
  const PrefixNode& record = tree_[before];
  const bool useful = record.state_kept || record.own_pins > 0 || record.reused;
  if (record.state != kNoBoundaryState && !useful) drop_state(before, PrefixRemoval::kSpace);
}

void PrefixCache::end_step() {
  for (const PlannedCapture& capture : captures_) give_state(capture.state);
  captures_.clear();
}

void PrefixCache::keep_fork_point(CacheState& cache, std::int32_t slot) {
  const PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  if (track.node == kNoPrefixNode || !track.policy.fork_points) return;
  if (tree_[track.node].state != kNoBoundaryState) return tree_.keep_state(track.node);
  copy_state(cache, slot, track.node, true);
}

}  // namespace dsv4rt

#include "replay/lru_curve.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dsv4rt::replay {
namespace {

constexpr std::size_t kSmallestSlots = 1024;

}  // namespace

std::int64_t run_tokens(const Request& request, std::int64_t run) noexcept {
  return std::min(run * request.block_tokens, request.input_tokens);
}

LruCurve::LruCurve(std::vector<std::int64_t> capacities) : capacities_(std::move(capacities)) {
  DSV4RT_CHECK(!capacities_.empty() && std::is_sorted(capacities_.begin(), capacities_.end()));
  gained_.resize(capacities_.size());
  renumber();
}

void LruCurve::count_slot(std::size_t slot, std::int32_t change) {
  live_ += change;
  slot_live_[slot] = change > 0;
  for (std::size_t i = slot + 1; i <= tree_.size(); i += i & (~i + 1)) tree_[i - 1] += change;
}

std::int64_t LruCurve::live_up_to(std::size_t slot) const {
  std::int64_t sum = 0;
  for (std::size_t i = slot + 1; i > 0; i -= i & (~i + 1)) sum += tree_[i - 1];
  return sum;
}

std::optional<std::int64_t> LruCurve::depth(std::uint64_t id) const {
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return {};
  return live_ - live_up_to(found->second) + 1;
}

void LruCurve::renumber() {
  std::vector<std::uint64_t> ids;  // least recent first
  ids.reserve(static_cast<std::size_t>(live_));
  for (std::size_t slot = 0; slot < next_slot_; ++slot) {
    if (slot_live_[slot]) ids.push_back(id_of_slot_[slot]);
  }
  const std::int64_t largest = capacities_.back();
  if (static_cast<std::int64_t>(ids.size()) > largest) {
    const auto forgotten = ids.end() - static_cast<std::ptrdiff_t>(largest);
    for (auto id = ids.begin(); id != forgotten; ++id) slot_of_.erase(*id);
    ids.erase(ids.begin(), forgotten);
  }
  const std::size_t slots = std::max(kSmallestSlots, ids.size() * 2);
  id_of_slot_.assign(slots, 0);
  slot_live_.assign(slots, false);
  tree_.assign(slots, 0);
  next_slot_ = 0;
  live_ = 0;
  for (const std::uint64_t id : ids) {
    id_of_slot_[next_slot_] = id;
    slot_of_[id] = next_slot_;
    count_slot(next_slot_++, 1);
  }
}

void LruCurve::touch(std::uint64_t id) {
  if (next_slot_ == tree_.size()) renumber();
  const auto [entry, fresh] = slot_of_.try_emplace(id, next_slot_);
  if (!fresh) count_slot(std::exchange(entry->second, next_slot_), -1);
  id_of_slot_[next_slot_] = id;
  count_slot(next_slot_++, 1);
}

void LruCurve::add(const Request& request) {
  std::size_t capacity = 0;  // the smallest that holds the run so far
  std::int64_t run = 0;
  std::size_t hit_from = capacities_.size();
  for (const std::uint64_t id : request.block_ids) {
    const auto block_depth = depth(id);
    while (capacity < capacities_.size() && (!block_depth || capacities_[capacity] < *block_depth)) ++capacity;
    if (capacity == capacities_.size()) break;
    if (run == 0) hit_from = capacity;
    gained_[capacity].hit_blocks += 1;
    gained_[capacity].hit_tokens += run_tokens(request, run + 1) - run_tokens(request, run);
    ++run;
  }
  if (hit_from < capacities_.size()) gained_[hit_from].hit_requests += 1;
  for (auto id = request.block_ids.rbegin(); id != request.block_ids.rend(); ++id) touch(*id);
}

std::vector<HitCounters> LruCurve::counters() const {
  std::vector<HitCounters> sums = gained_;
  for (std::size_t i = 1; i < sums.size(); ++i) {
    sums[i].hit_tokens += sums[i - 1].hit_tokens;
    sums[i].hit_blocks += sums[i - 1].hit_blocks;
    sums[i].hit_requests += sums[i - 1].hit_requests;
  }
  return sums;
}

}  // namespace dsv4rt::replay

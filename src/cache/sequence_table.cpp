#include "cache/sequence_table.h"

#include <algorithm>

#include "base/check.h"

namespace dsv4rt {

SequenceTable::SequenceTable(std::int32_t max_sequences, std::uint32_t first_generation) {
  DSV4RT_CHECK(max_sequences >= 1 && first_generation != 0);
  records_.resize(static_cast<std::size_t>(max_sequences), SequenceRecord{.generation = first_generation});
  free_slots_.reserve(records_.size());
  for (std::int32_t slot = max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

std::int32_t SequenceTable::next_slot() const {
  DSV4RT_CHECK(!free_slots_.empty());
  return free_slots_.back();
}

std::int32_t SequenceTable::acquire() {
  const std::int32_t slot = next_slot();
  free_slots_.pop_back();
  SequenceRecord& record = (*this)[slot];
  record = SequenceRecord{.generation = record.generation, .live = true};
  return slot;
}

void SequenceTable::release(std::int32_t slot) {
  SequenceRecord& record = (*this)[slot];
  DSV4RT_CHECK(record.live);
  const std::uint32_t next = record.generation + 1;
  record = SequenceRecord{.generation = next == 0 ? 1 : next};
  free_slots_.push_back(slot);
}

Status SequenceTable::stale(SequenceId id) const {
  std::string message = "sequence {index " + std::to_string(id.index) + ", generation " + std::to_string(id.generation);
  if (id.index >= records_.size()) {
    message += "} never existed; indices are below " + std::to_string(records_.size());
  } else {
    message += "} is not live; generation " + std::to_string(records_[id.index].generation) +
               (records_[id.index].live ? " owns the index now" : " will own the index next") +
               "; ids of another engine are stale in this one";
  }
  return {StatusCode::kStaleHandle, message};
}

Status SequenceTable::check() const {
  std::vector<bool> is_free(records_.size(), false);
  for (const std::int32_t slot : free_slots_) {
    const auto index = static_cast<std::size_t>(slot);
    if (records_[index].live || is_free[index]) {
      return {StatusCode::kInternal, "slot " + std::to_string(slot) + " is free but live or listed twice"};
    }
    is_free[index] = true;
  }
  const auto live_records = std::count_if(records_.begin(), records_.end(), [](const auto& r) { return r.live; });
  if (live_records != live()) {
    return {StatusCode::kInternal, "slots: " + std::to_string(live_records) + " live records, " +
                                       std::to_string(live()) + " not on the free list"};
  }
  return {};
}

}  // namespace dsv4rt

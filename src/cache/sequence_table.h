// SequenceTable: which sequences live, under which id, and how long they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

struct SequenceRecord {
  std::uint32_t generation = 1;  // generation of the present or the next owner of the slot; never 0
  bool live = false;
  std::int32_t length = 0;  // tokens, those of an outstanding step included
  // One past the highest position written since the rings were last empty: the rings hold
  // [high_water - ring_rows, high_water). Above `length` after a rollback.
  std::int32_t high_water = 0;
  std::int32_t reserve_tokens = 0;  // length up to which appends cannot fail; 0: none
};

// A sequence's index is its slot: the row of every ring array and of every block table.
class SequenceTable {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit SequenceTable(std::int32_t max_sequences, std::uint32_t first_generation = 1);

  [[nodiscard]] std::int32_t capacity() const noexcept { return static_cast<std::int32_t>(records_.size()); }
  [[nodiscard]] std::int32_t live() const noexcept {
    return capacity() - static_cast<std::int32_t>(free_slots_.size());
  }
  // The slot of a live sequence, or kNone.
  [[nodiscard]] std::int32_t find(SequenceId id) const noexcept {
    if (id.index >= records_.size()) return kNone;
    const SequenceRecord& record = records_[id.index];
    return record.live && record.generation == id.generation ? static_cast<std::int32_t>(id.index) : kNone;
  }
  [[nodiscard]] SequenceRecord& operator[](std::int32_t slot) noexcept {
    return records_[static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] const SequenceRecord& operator[](std::int32_t slot) const noexcept {
    return records_[static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] SequenceId id(std::int32_t slot) const noexcept {
    return {static_cast<std::uint32_t>(slot), (*this)[slot].generation};
  }

  // The slot that acquire() will give. Precondition: live() < capacity().
  [[nodiscard]] std::int32_t next_slot() const;
  // An empty sequence's slot. Precondition: live() < capacity().
  std::int32_t acquire();
  // Ids of the slot become stale.
  void release(std::int32_t slot);

  // kStaleHandle naming index and generation; what every call answers when find() gives kNone.
  [[nodiscard]] Status stale(SequenceId id) const;
  // kInternal when free slots and live records disagree.
  [[nodiscard]] Status check() const;

 private:
  std::vector<SequenceRecord> records_;
  std::vector<std::int32_t> free_slots_;  // the last one freed is reused first
};

}  // namespace dsv4rt

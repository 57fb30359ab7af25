// Packs the metadata of one step (step/step_metadata.h) into the manager's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv4rt/status.h"
#include "step/step_metadata.h"

namespace dsv4rt {

// The part of a step that one sequence contributes.
struct StepSegment {
  std::int32_t slot = 0;
  std::int32_t start = 0;  // position of the first token
  std::int32_t tokens = 0;
};

class StepMetadataWriter {
 public:
  // `ratios` is LayerSchedule::ratios().
  StepMetadataWriter(const StepCapacity& capacity, std::span<const std::int32_t> ratios);

  [[nodiscard]] const StepOffsets& offsets() const noexcept { return offsets_; }
  [[nodiscard]] const StepHeader& counts() const noexcept { return counts_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {base(), offsets_.total_bytes}; }

  // Forgets the previous step's deltas and copies.
  void begin() noexcept { counts_ = StepHeader{}; }
  // Within the capacity, which bounds what one step can need.
  void add_delta(const BlockTableDelta& delta) noexcept { deltas_[counts_.table_deltas++] = delta; }
  // Room for `count` deltas that the caller fills.
  BlockTableDelta* add_deltas(std::int32_t count) noexcept {
    BlockTableDelta* first = deltas_ + counts_.table_deltas;
    counts_.table_deltas += count;
    return first;
  }
  void add_copy(const BlockCopy& copy) noexcept { copies_[counts_.block_copies++] = copy; }
  // Writes everything else: one segment per sequence in batch order, then padding up to `rows`.
  void finish(std::span<const StepSegment> segments, std::int32_t rows) noexcept;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  template <class T>
  T* at(std::size_t offset) noexcept {
    return reinterpret_cast<T*>(buffer_.data()->bytes + offset);
  }
  [[nodiscard]] const std::byte* base() const noexcept { return buffer_.data()->bytes; }
  void write_segment(std::int32_t sequence, const StepSegment& segment, std::int32_t first_row) noexcept;

  std::vector<std::int32_t> ratios_;
  StepOffsets offsets_;
  std::vector<Line> buffer_;
  BlockTableDelta* deltas_ = nullptr;
  BlockCopy* copies_ = nullptr;
  StepHeader counts_{};
};

}  // namespace dsv4rt

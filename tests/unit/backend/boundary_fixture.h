// Rings with boundary states, and block tables, in one range of memory each: for the tests of boundary operations on
// any backend.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "backend/boundary_state.h"
#include "unit/backend/rows_fixture.h"

namespace dsv4rt::test {

inline constexpr std::array kBoundaryFormats = {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4,
                                                RowFormat::kBf16};
inline constexpr std::int32_t kKeptStateRows = 4;  // the last block of an overlapping compressor of ratio 4

// A ring of a layer and its rows in a state.
struct RingKind {
  BlockShape ring;
  BlockShape state;
};

inline RingKind window_ring(RowFormat format, std::int32_t window, std::int32_t draft) {
  return {.ring = block_shape(format, window + draft), .state = block_shape(format, window)};
}
inline BlockShape projection_rows(std::int32_t rows, std::int32_t width) {
  const std::int32_t bytes = 2 * width * 4;
  return {.rows = rows, .data_bytes = bytes, .scale_bytes = 0, .block_bytes = std::int64_t{rows} * bytes};
}
inline RingKind state_ring(std::int32_t dim, std::int32_t draft) {
  return {.ring = projection_rows(8 + draft, 2 * dim), .state = projection_rows(kKeptStateRows, 2 * dim)};
}

// Random bytes everywhere, with gaps between rings and between the parts of a state: offsets serve host and device.
class BoundaryMemory {
 public:
  BoundaryMemory(std::vector<RingKind> kinds, std::int32_t slots, std::int32_t states, std::uint64_t seed = 91)
      : kinds_(std::move(kinds)) {
    std::int64_t bytes = 0;
    for (const RingKind& kind : kinds_) {
      ring_offsets_.push_back(bytes);
      bytes = aligned(bytes + slots * slot_bytes(kind)) + 256;
      state_offsets_.push_back(state_bytes_);
      state_bytes_ = aligned(state_bytes_ + kind.state.block_bytes) + 256;
    }
    states_offset_ = bytes;
    bytes_ = poisoned(static_cast<std::size_t>(bytes + states * state_bytes_), seed);
  }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] BoundaryStates states(std::byte* base) const { return {base + states_offset_, state_bytes_}; }
  [[nodiscard]] std::vector<BoundaryRows> rows(std::byte* base) const {
    std::vector<BoundaryRows> rows;
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      rows.push_back({.rings = base + ring_offsets_[i],
                      .slot_bytes = slot_bytes(kinds_[i]),
                      .ring = kinds_[i].ring,
                      .state_offset = state_offsets_[i],
                      .state = kinds_[i].state});
    }
    return rows;
  }
  Status copy(Ops& ops, std::byte* base, BoundaryDirection direction, std::span<const BoundaryCopy> copies) const {
    return ops.copy_boundary_rows(direction, copies, rows(base), states(base));
  }
  // What copy() should do, byte by byte.
  void copy_bytes(BoundaryDirection direction, std::span<const BoundaryCopy> copies) {
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const RingKind& kind = kinds_[i];
      for (const BoundaryCopy& copy : copies) {
        for (std::int32_t row = 0; row < kind.state.rows; ++row) {
          const std::int32_t position = copy.boundary - kind.state.rows + row;
          if (position < 0 || position >= copy.end) continue;
          const std::int64_t ring = ring_offsets_[i] + copy.slot * slot_bytes(kind);
          const std::int64_t state = states_offset_ + copy.state * state_bytes_ + state_offsets_[i];
          const std::int32_t ring_row = position % kind.ring.rows;
          move(direction, ring + ring_row * kind.ring.data_bytes, state + row * kind.ring.data_bytes,
               kind.ring.data_bytes);
          move(direction, ring + kind.ring.rows * kind.ring.data_bytes + ring_row * kind.ring.scale_bytes,
               state + kind.state.rows * kind.ring.data_bytes + row * kind.ring.scale_bytes, kind.ring.scale_bytes);
        }
      }
    }
  }

 private:
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
  static std::int64_t slot_bytes(const RingKind& kind) { return kind.ring.block_bytes + 64; }
  void move(BoundaryDirection direction, std::int64_t ring, std::int64_t state, std::int32_t count) {
    const bool taken = direction == BoundaryDirection::kFromRings;
    std::copy_n(bytes_.begin() + (taken ? ring : state), count, bytes_.begin() + (taken ? state : ring));
  }

  std::vector<RingKind> kinds_;
  std::vector<std::int64_t> ring_offsets_, state_offsets_;
  std::int64_t states_offset_ = 0, state_bytes_ = 0;
  std::vector<std::byte> bytes_;
};

struct CopyCase {
  std::string name;
  std::vector<RingKind> kinds;
  std::int32_t slots = 0;
  std::int32_t states = 0;
  std::vector<BoundaryCopy> copies;
};

inline std::vector<CopyCase> copy_cases() {
  std::vector<CopyCase> cases;
  for (const RowFormat format : kBoundaryFormats) {
    const std::vector<RingKind> kinds = {window_ring(format, 128, 0), window_ring(format, 128, 3),
                                         window_ring(format, 16, 5),  state_ring(kHeadDim, 0),
                                         state_ring(kHeadDim, 3),     state_ring(kIndexHeadDim, 1)};
    for (const std::int32_t boundary : {2, 12, 100, 128, 256, 384, 1024, 1 << 20}) {
      for (const std::int32_t short_by : {0, 1, 3, 15, 64, 127, 128, 300}) {
        if (short_by > boundary) continue;
        cases.push_back({std::string(row_format_name(format)) + " boundary " + std::to_string(boundary) + " end -" +
                             std::to_string(short_by),
                         kinds,
                         3,
                         4,
                         {{.slot = 1, .state = 2, .boundary = boundary, .end = boundary - short_by}}});
      }
    }
    cases.push_back({std::string(row_format_name(format)) + " three copies",
                     kinds,
                     3,
                     3,
                     {{.slot = 2, .state = 0, .boundary = 128, .end = 128},
                      {.slot = 0, .state = 2, .boundary = 640, .end = 600},
                      {.slot = 1, .state = 1, .boundary = 96, .end = 96}}});
  }
  CopyCase many{"150 copies", {window_ring(RowFormat::kFp8Row, 8, 1), state_ring(kIndexHeadDim, 0)}, 150, 150, {}};
  for (std::int32_t i = 0; i < 150; ++i) {
    many.copies.push_back({.slot = i, .state = 149 - i, .boundary = 4 * (i + 1), .end = 4 * (i + 1) - i % 3});
  }
  cases.push_back(many);
  CopyCase rings{"300 rings", {}, 2, 2, {{.slot = 1, .state = 0, .boundary = 128, .end = 128}}};
  for (int i = 0; i < 300; ++i) rings.kinds.push_back(window_ring(RowFormat::kNvfp4, 4 + i % 2, i % 2));
  cases.push_back(rings);
  CopyCase shapes{"40 shapes", {}, 2, 2, {{.slot = 0, .state = 1, .boundary = 256, .end = 256}}};
  for (int i = 0; i < 40; ++i) shapes.kinds.push_back(window_ring(RowFormat::kFp8Row, 4 + i, i % 3));
  cases.push_back(shapes);
  return cases;
}

// Block tables of several widths and the ids of new rows, behind them.
class TableMemory {
 public:
  static constexpr std::int32_t kSlots = 3;

  // columns[i] ids for table i, whose rows have spare[i] entries more.
  TableMemory(std::vector<std::int32_t> columns, const std::vector<std::int32_t>& spare)
      : columns_(std::move(columns)) {
    std::int32_t ids = 0;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      offsets_.push_back(static_cast<std::int64_t>(entries_.size()));
      strides_.push_back(columns_[i] + spare[i]);
      entries_.resize(entries_.size() + static_cast<std::size_t>(kSlots * strides_[i]), -7);
      ids += columns_[i];
    }
    ids_ = entries_.size();
    for (std::int32_t i = 0; i < ids; ++i) entries_.push_back(1000 + i);
  }

  [[nodiscard]] std::vector<std::int32_t>& entries() { return entries_; }
  [[nodiscard]] const std::vector<std::int32_t>& columns() const { return columns_; }
  [[nodiscard]] std::vector<CacheTable> tables(std::int32_t* base) const {
    std::vector<CacheTable> tables;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      tables.push_back({.block_table = base + offsets_[i], .stride = strides_[i], .blocks = nullptr, .block_bytes = 0});
    }
    return tables;
  }
  Status write(Ops& ops, std::int32_t* base, std::int32_t slot) const {
    return ops.write_table_rows(slot, base + ids_, columns_, tables(base));
  }
  // What write() should do.
  void write_entries(std::int32_t slot) {
    std::size_t id = ids_;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      for (std::int32_t column = 0; column < columns_[i]; ++column) {
        entries_[static_cast<std::size_t>(offsets_[i] + slot * strides_[i] + column)] = entries_[id++];
      }
    }
  }

 private:
  std::vector<std::int32_t> columns_, strides_, entries_;
  std::vector<std::int64_t> offsets_;
  std::size_t ids_ = 0;
};

inline std::vector<TableMemory> table_cases() {
  std::vector<TableMemory> cases;
  cases.push_back(TableMemory({5, 0, 8, 1}, {3, 4, 0, 0}));
  cases.push_back(TableMemory(std::vector<std::int32_t>(62, 4100), std::vector<std::int32_t>(62, 4)));
  std::vector<std::int32_t> columns, spare;
  for (std::int32_t i = 0; i < 200; ++i) {
    columns.push_back(i * 7 % 33);
    spare.push_back(i % 5);
  }
  cases.push_back(TableMemory(columns, spare));
  return cases;
}

}  // namespace dsv4rt::test

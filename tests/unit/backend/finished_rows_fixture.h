// Finished rows between a cache and a packed block, for the tests of copy_finished_rows on any backend.
#pragma once

#include <string>
#include <vector>

#include "unit/backend/ops_fixture.h"

namespace dsv4rt::test {

struct FinishedCase {
  std::string name;
  BlockShape pool;  // rows of a block of the cache
  std::int32_t ratio = 4;
  std::vector<Part> parts;  // the step
  std::int32_t padding = 0;
  std::int32_t first = 0;  // the tokens that the call is for
  std::int32_t count = 0;
};

// A cache of random bytes, tables that deal its blocks out in no order, and a packed block.
class FinishedMemory {
 public:
  static constexpr std::int32_t kTableColumns = 40;

  FinishedMemory(const FinishedCase& of, std::uint64_t seed)
      : of_(of), step_(of.parts, of.padding, {of.ratio}), pool_(poisoned(pool_bytes(of), seed)) {
    std::int32_t sequences = 0;
    const StepView view = step_.view();
    for (std::int32_t t = of.first; t < of.first + of.count; ++t) {
      if (view.token_sequence[t] < 0) continue;
      sequences += t == of.first || view.token_sequence[t] != view.token_sequence[t - 1] ? 1 : 0;
    }
    packed_shape_ = of.pool;
    packed_shape_.rows = packed_places(of.count, of.ratio, std::max(sequences, 1));
    packed_shape_.block_bytes = (packed_shape_.scale_offset(packed_shape_.rows) + 15) / 16 * 16;
    packed_ = poisoned(static_cast<std::size_t>(packed_shape_.block_bytes), seed + 1);
    const std::int32_t blocks = slots(of) * kTableColumns;
    for (std::int32_t i = 0; i < blocks; ++i) table_.push_back((i * 7 + 3) % blocks);  // 7 divides no multiple of 40
  }

  [[nodiscard]] std::vector<std::byte>& pool() { return pool_; }
  [[nodiscard]] std::vector<std::byte>& packed() { return packed_; }
  [[nodiscard]] std::vector<std::int32_t>& table() { return table_; }
  [[nodiscard]] const TestStep& step() const { return step_; }

  [[nodiscard]] FinishedRowsParams params(StepView view, std::byte* pool, const std::int32_t* table,
                                          std::byte* packed) const {
    view.counts.tokens = of_.count;
    view.token_position += of_.first;
    view.token_sequence += of_.first;
    view.valid_mask[0] += of_.first;
    view.row_index[0] += of_.first;
    return {.step = view,
            .ratio = of_.ratio,
            .ratio_class = 0,
            .rows = {.blocks = pool, .shape = of_.pool, .block_table = table, .table_stride = kTableColumns},
            .packed_shape = packed_shape_,
            .packed = packed};
  }

  // What the call is to leave: rows by hand, found by sequence and position.
  void copy_rows(RowDirection direction) {
    const StepView view = step_.view();
    for (std::int32_t t = of_.first; t < of_.first + of_.count; ++t) {
      const std::int32_t sequence = view.token_sequence[t];
      if (sequence < 0 || (view.token_position[t] + 1) % of_.ratio != 0) continue;
      const std::int32_t row = view.token_position[t] / of_.ratio;
      const std::int32_t column = row / of_.pool.rows;
      const auto id = table_[static_cast<std::size_t>(view.sequence_slot[sequence] * kTableColumns + column)];
      const std::int64_t block = id * of_.pool.block_bytes;
      const std::int64_t place = (t - of_.first) / of_.ratio + sequence - view.token_sequence[of_.first];
      copy(direction, block + of_.pool.data_offset(row % of_.pool.rows), packed_shape_.data_offset(place),
           of_.pool.data_bytes);
      copy(direction, block + of_.pool.scale_offset(row % of_.pool.rows), packed_shape_.scale_offset(place),
           of_.pool.scale_bytes);
    }
  }

 private:
  static std::int32_t slots(const FinishedCase& of) {
    std::int32_t slots = 0;
    for (const Part& part : of.parts) slots = std::max(slots, part.slot + 1);
    return slots;
  }
  static std::size_t pool_bytes(const FinishedCase& of) {
    return static_cast<std::size_t>(slots(of) * kTableColumns * of.pool.block_bytes);
  }
  void copy(RowDirection direction, std::int64_t in_pool, std::int64_t in_packed, std::int32_t bytes) {
    std::byte* const pooled = pool_.data() + in_pool;
    std::byte* const packed = packed_.data() + in_packed;
    const bool packs = direction == RowDirection::kFromCache;
    std::memcpy(packs ? packed : pooled, packs ? pooled : packed, static_cast<std::size_t>(bytes));
  }

  FinishedCase of_;
  TestStep step_;
  std::vector<std::byte> pool_;
  std::vector<std::byte> packed_;
  std::vector<std::int32_t> table_;
  BlockShape packed_shape_;
};

// Every format at every kind of place: a long sequence, many short ones that all complete a row, padding.
inline std::vector<FinishedCase> finished_cases() {
  std::vector<std::pair<std::string, BlockShape>> shapes;
  for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16}) {
    shapes.emplace_back("rows " + std::string(row_format_name(format)), block_shape(format, 5));
  }
  for (const IndexKeyFormat format :
       {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8, IndexKeyFormat::kBf16}) {
    shapes.emplace_back("keys " + std::string(index_key_format_name(format)), block_shape(format, 5));
  }
  std::vector<Part> completing;  // a row each
  for (std::int32_t slot = 0; slot < 50; ++slot) completing.push_back({slot, 4 * slot % 120 + 3, 1});
  std::vector<FinishedCase> cases;
  for (const auto& [name, shape] : shapes) {
    for (const std::int32_t first : {0, 1, 2, 3, 137}) {
      const std::vector<Part> parts{{1, 2, 400}, {0, 255, 263}, {2, 7, 3}};
      cases.push_back({name + ", long, from " + std::to_string(first), shape, 4, parts, 5, first, 671 - first});
    }
    cases.push_back({name + ", every 128", shape, 128, {{0, 100, 900}, {1, 126, 1}, {2, 127, 1}}, 0, 30, 872});
    cases.push_back({name + ", many", shape, 4, completing, 0, 7, 40});
    cases.push_back({name + ", padding alone", shape, 4, {{0, 0, 8}}, 40, 16, 32});
  }
  return cases;
}

}  // namespace dsv4rt::test

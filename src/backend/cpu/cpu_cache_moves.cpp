// Moves of whole blocks, table rows and slots: between layers' operations, never inside them.
#include <cstring>
#include <string>

#include "backend/cpu/cpu_ops.h"
#include "backend/move_checks.h"
#include "base/try.h"

namespace dsv4rt::cpu {
namespace {

Status unknown_table(const char* what, std::int32_t table, std::size_t tables) {
  return {StatusCode::kInternal,
          std::string(what) + " names table " + std::to_string(table) + "; the step has " + std::to_string(tables)};
}

bool is_table(std::int32_t table, std::size_t tables) {
  return table >= 0 && static_cast<std::size_t>(table) < tables;
}

}  // namespace

Status CpuOps::begin_step(const StepView& step, std::span<const CacheTable> tables) {
  // Checked before the first change: a step is applied whole or not at all.
  for (std::int32_t i = 0; i < step.counts.table_deltas; ++i) {
    const BlockTableDelta& delta = step.table_deltas[i];
    if (!is_table(delta.table, tables.size())) return unknown_table("block-table delta", delta.table, tables.size());
  }
  for (std::int32_t i = 0; i < step.counts.block_copies; ++i) {
    const BlockCopy& copy = step.block_copies[i];
    if (!is_table(copy.table, tables.size())) return unknown_table("block copy", copy.table, tables.size());
  }
  for (std::int32_t i = 0; i < step.counts.table_deltas; ++i) {
    const BlockTableDelta& delta = step.table_deltas[i];
    const CacheTable& table = tables[static_cast<std::size_t>(delta.table)];
    table.block_table[delta.slot * table.stride + delta.index] = delta.block;
  }
  // The order matters: a later copy may read what an earlier one wrote.
  for (std::int32_t i = 0; i < step.counts.block_copies; ++i) {
    const BlockCopy& copy = step.block_copies[i];
    if (copy.source == copy.target) continue;
    const CacheTable& table = tables[static_cast<std::size_t>(copy.table)];
    std::memcpy(table.blocks + copy.target * table.block_bytes, table.blocks + copy.source * table.block_bytes,
                static_cast<std::size_t>(table.block_bytes));
  }
  return {};
}

Status CpuOps::copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                         std::span<const CacheRings> rings) {
  if (source == target) return {};
  for (const CacheTable& table : tables) {
    std::memcpy(table.block_table + target * table.stride, table.block_table + source * table.stride,
                static_cast<std::size_t>(table.stride) * sizeof(std::int32_t));
  }
  return team_.parallel_for(static_cast<std::int64_t>(rings.size()), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const CacheRings& ring = rings[static_cast<std::size_t>(i)];
      std::memcpy(ring.base + target * ring.slot_bytes, ring.base + source * ring.slot_bytes,
                  static_cast<std::size_t>(ring.slot_bytes));
    }
  });
}

Status CpuOps::write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                                std::span<const CacheTable> tables) {
  DSV4RT_RETURN_IF_ERROR(check_table_rows(slot, ids, columns, tables));
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto count = static_cast<std::size_t>(columns[i]);
    if (count > 0) std::memcpy(tables[i].block_table + slot * tables[i].stride, ids, count * sizeof(std::int32_t));
    ids += count;
  }
  return {};
}

}  // namespace dsv4rt::cpu

// Engine::save_sequence and Engine::restore_sequence: cache rows between the backend and snapshots.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"
#include "engine/sequence_snapshot.h"

namespace dsv4rt {
namespace {

// Rows [first, first + rows) of one block or ring: contiguous data, contiguous scales.
struct RowRun {
  std::byte* block = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

// Moves rows between the backend, where a block's data and scale parts lie apart, and snapshot rows.
class RowMover {
 public:
  RowMover(Backend& backend, std::int64_t most_bytes) : backend_(backend) {
    rows_.reserve(static_cast<std::size_t>(most_bytes));
    part_.reserve(static_cast<std::size_t>(most_bytes));
  }

  // The rows of a run, valid until the next call.
  Result<std::span<const std::byte>> download(const BlockShape& shape, const RowRun& run) {
    rows_.resize(static_cast<std::size_t>(run.rows * shape.row_bytes()));
    for (const Part& part : parts(shape, run)) {
      part_.resize(static_cast<std::size_t>(run.rows * part.bytes));
      DSV4RT_RETURN_IF_ERROR(backend_.download(part_.data(), part.at, part_.size()));
      for (std::int64_t row = 0; row < run.rows; ++row) {
        std::memcpy(rows_.data() + row * shape.row_bytes() + part.offset, part_.data() + row * part.bytes,
                    static_cast<std::size_t>(part.bytes));
      }
    }
    return std::span<const std::byte>(rows_);
  }

  Status upload(const BlockShape& shape, const RowRun& run, const std::byte* rows) {
    for (const Part& part : parts(shape, run)) {
      part_.resize(static_cast<std::size_t>(run.rows * part.bytes));
      for (std::int64_t row = 0; row < run.rows; ++row) {
        std::memcpy(part_.data() + row * part.bytes, rows + row * shape.row_bytes() + part.offset,
                    static_cast<std::size_t>(part.bytes));
      }
      DSV4RT_RETURN_IF_ERROR(backend_.upload(part.at, part_.data(), part_.size()));
    }
    return {};
  }

 private:
  struct Part {
    std::byte* at;
    std::int64_t bytes;   // per row
    std::int64_t offset;  // bytes into a snapshot's row
  };
  static std::array<Part, 2> parts(const BlockShape& shape, const RowRun& run) {
    return {{{run.block + shape.data_offset(run.first), shape.data_bytes, 0},
             {run.block + shape.scale_offset(run.first), shape.scale_bytes, shape.data_bytes}}};
  }

  Backend& backend_;
  std::vector<std::byte> rows_;
  std::vector<std::byte> part_;
};

std::vector<RowRun> paged_runs(const CacheTable& table, const BlockShape& shape, std::span<const BlockId> blocks,
                               std::int64_t rows) {
  std::vector<RowRun> runs;
  for (const BlockId block : blocks) {
    const std::int64_t done = static_cast<std::int64_t>(runs.size()) * shape.rows;
    runs.push_back(
        {table.blocks + block.value * table.block_bytes, 0, std::min<std::int64_t>(shape.rows, rows - done)});
  }
  return runs;
}

// Positions [first, first + rows), at most the whole ring: one run, or two where it wraps.
std::vector<RowRun> ring_runs(std::byte* ring, std::int64_t ring_rows, std::int64_t first, std::int64_t rows) {
  std::vector<RowRun> runs;
  while (rows > 0) {
    const std::int64_t row = first % ring_rows;
    const std::int64_t count = std::min(rows, ring_rows - row);
    runs.push_back({ring, row, count});
    first += count;
    rows -= count;
  }
  return runs;
}

// What of an engine snapshots are made of.
struct CacheParts {
  Backend& backend;
  const CacheMemory& memory;
  const CacheLayout& layout;
  const KVCacheManager& manager;
  const AttentionSettings& settings;
  std::span<const LayerId> layers;
};

// A template because Engine::Impl has no name here.
template <class EngineImpl>
CacheParts cache_parts(const EngineImpl& engine) {
  return {*engine.backend, engine.cache, engine.layout, *engine.manager, engine.settings, engine.layer_ids};
}

// One section and the region that holds its rows: a pool, or a ring if `pool` is negative.
struct SectionRegion {
  SnapshotSection section;
  BlockShape shape;
  int pool = -1;
  int ring = -1;
};

std::vector<SectionRegion> section_regions(const CacheParts& parts, std::int64_t length) {
  std::vector<SectionRegion> regions;
  for (std::size_t local = 0; local < parts.layers.size(); ++local) {
    const LayerId local_id(static_cast<std::int32_t>(local));
    for (int r = 0; r < kCacheRoleCount; ++r) {
      const auto role = static_cast<CacheRole>(r);
      SectionRegion region;
      SnapshotSection& section = region.section;
      section.role = role;
      section.layer = parts.layers[local];
      section.layout = role == CacheRole::kIndexK ? snapshot_layout_id(parts.settings.index_format)
                                                  : snapshot_layout_id(parts.settings.row_format);
      region.pool = parts.layout.pool_index(local_id, role);
      region.ring = parts.layout.slot_index(local_id, role);
      if (region.pool >= 0) {
        const PoolSpec& spec = parts.layout.pools()[static_cast<std::size_t>(region.pool)];
        region.shape = spec.shape;
        section.rows = length / spec.ratio;
      } else if (region.ring >= 0) {
        const SlotSpec& spec = parts.layout.slots()[static_cast<std::size_t>(region.ring)];
        region.shape = spec.shape;
        section.first_row = first_needed_position(spec, length);
        section.rows = length - section.first_row;
        if (role != CacheRole::kSwaKv) section.layout = kSnapshotStateLayout;
      } else {
        continue;
      }
      section.row_bytes = region.shape.row_bytes();
      regions.push_back(region);
    }
  }
  return regions;
}

std::vector<SnapshotSection> sections_of(std::span<const SectionRegion> regions) {
  std::vector<SnapshotSection> sections;
  for (const SectionRegion& region : regions) sections.push_back(region.section);
  return sections;
}

std::int64_t most_run_bytes(std::span<const SectionRegion> regions) {
  std::int64_t bytes = 0;
  for (const SectionRegion& region : regions) {
    const std::int64_t rows = std::min<std::int64_t>(region.section.rows, region.shape.rows);
    bytes = std::max(bytes, rows * region.shape.row_bytes());
  }
  return bytes;
}

Result<std::vector<RowRun>> runs_of(const CacheParts& parts, const SectionRegion& region, SequenceId sequence) {
  if (region.pool >= 0) {
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<BlockId> blocks, parts.manager.blocks(sequence, region.pool));
    return paged_runs(parts.memory.tables()[static_cast<std::size_t>(region.pool)], region.shape, blocks,
                      region.section.rows);
  }
  DSV4RT_ASSIGN_OR_RETURN(const StateSlotId slot, parts.manager.slot(sequence));
  const CacheRings& rings = parts.memory.rings()[static_cast<std::size_t>(region.ring)];
  return ring_runs(rings.base + slot.value * rings.slot_bytes, region.shape.rows, region.section.first_row,
                   region.section.rows);
}

// The device's block-table rows of a sequence whose blocks no step has announced.
Status upload_tables(const CacheParts& parts, SequenceId sequence) {
  static_assert(sizeof(BlockId) == sizeof(std::int32_t));
  DSV4RT_ASSIGN_OR_RETURN(const StateSlotId slot, parts.manager.slot(sequence));
  for (std::size_t pool = 0; pool < parts.layout.pools().size(); ++pool) {
    const CacheTable& table = parts.memory.tables()[pool];
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<BlockId> blocks, parts.manager.blocks(sequence, static_cast<int>(pool)));
    DSV4RT_RETURN_IF_ERROR(parts.backend.upload(table.block_table + slot.value * table.stride, blocks.data(),
                                                blocks.size() * sizeof(BlockId)));
  }
  return {};
}

Status upload_rows(const CacheParts& parts, const SectionRegion& region, SequenceId sequence, RowMover& mover,
                   std::span<const std::byte> rows) {
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<RowRun> runs, runs_of(parts, region, sequence));
  for (const RowRun& run : runs) {
    DSV4RT_RETURN_IF_ERROR(mover.upload(region.shape, run, rows.data()));
    rows = rows.subspan(static_cast<std::size_t>(run.rows * region.shape.row_bytes()));
  }
  return {};
}

}  // namespace

Status Engine::save_sequence(SequenceId sequence, const SnapshotSink& sink, const SnapshotOptions& snapshot) {
  return impl_->call("save_sequence", Impl::Use::kChange, [&]() -> Status {
    Impl& engine = *impl_;
    if (!sink) return {StatusCode::kInvalidArgument, "save_sequence: sink is empty; it must take the bytes"};
    DSV4RT_RETURN_IF_ERROR(check_snapshot_key("save_sequence", snapshot.key));
    DSV4RT_RETURN_IF_ERROR(engine.no_step_outstanding("save_sequence"));
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, engine.manager->length(sequence));
    const CacheParts parts = cache_parts(engine);
    const std::vector<SectionRegion> regions = section_regions(parts, length);
    RowMover mover(*engine.backend, most_run_bytes(regions));
    const SnapshotSink callers = [&](std::span<const std::byte> bytes) { return engine.call_sink(sink, bytes); };
    SnapshotWriter writer(callers, snapshot.key);
    DSV4RT_RETURN_IF_ERROR(writer.header(engine.snapshot_identity(), length, regions.size()));
    for (const SectionRegion& region : regions) {
      DSV4RT_RETURN_IF_ERROR(writer.begin_section(region.section));
      DSV4RT_ASSIGN_OR_RETURN(const std::vector<RowRun> runs, runs_of(parts, region, sequence));
      for (const RowRun& run : runs) {
        const auto rows = mover.download(region.shape, run);
        if (!rows.ok()) return engine.latch_if_broken(rows.status());
        DSV4RT_RETURN_IF_ERROR(writer.rows(*rows));
      }
      DSV4RT_RETURN_IF_ERROR(writer.end_section());
    }
    return writer.finish();
  });
}

Result<std::int64_t> Engine::snapshot_bytes(SequenceId sequence, const SnapshotOptions& snapshot) const {
  return impl_->call("snapshot_bytes", Impl::Use::kRead, [&]() -> Result<std::int64_t> {
    DSV4RT_RETURN_IF_ERROR(impl_->no_step_outstanding("snapshot_bytes"));
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, impl_->manager->length(sequence));
    return dsv4rt::snapshot_bytes(sections_of(section_regions(cache_parts(*impl_), length)), snapshot.key);
  });
}

Result<std::vector<std::byte>> Engine::save_sequence(SequenceId sequence, const SnapshotOptions& options) {
  return impl_->call("save_sequence", Impl::Use::kChange, [&]() -> Result<std::vector<std::byte>> {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t bytes_needed, snapshot_bytes(sequence, options));
    std::vector<std::byte> snapshot;
    snapshot.reserve(static_cast<std::size_t>(bytes_needed));
    const SnapshotSink sink = [&](std::span<const std::byte> bytes) -> Status {
      snapshot.insert(snapshot.end(), bytes.begin(), bytes.end());
      return {};
    };
    DSV4RT_RETURN_IF_ERROR(save_sequence(sequence, sink, options));
    return snapshot;
  });
}

Result<SequenceId> Engine::restore_sequence(std::span<const std::byte> snapshot, std::int64_t reserve_tokens,
                                            const SnapshotOptions& options) {
  return impl_->call("restore_sequence", Impl::Use::kChange, [&]() -> Result<SequenceId> {
    Impl& engine = *impl_;
    DSV4RT_RETURN_IF_ERROR(check_snapshot_key("restore_sequence", options.key));
    const CacheParts parts = cache_parts(engine);
    DSV4RT_ASSIGN_OR_RETURN(const SnapshotContent content,
                            read_snapshot_header(snapshot, engine.snapshot_identity(),
                                                 engine.options.limits.max_context_tokens, options.key));
    const std::int64_t length = content.length;
    const std::vector<SectionRegion> regions = section_regions(parts, length);
    DSV4RT_ASSIGN_OR_RETURN(const auto rows, read_snapshot_sections(content, sections_of(regions)));
    RowMover mover(*engine.backend, most_run_bytes(regions));

    DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine.manager->restore_sequence(length, reserve_tokens));
    const StateSlotId slot = engine.manager->slot(sequence).value();
    Status filled;
    try {
      filled = engine.reclaim();
      if (filled.ok()) filled = upload_tables(parts, sequence);
      for (std::size_t i = 0; i < regions.size() && filled.ok(); ++i) {
        filled = upload_rows(parts, regions[i], sequence, mover, rows[i]);
      }
    } catch (...) {
      filled = engine.of_exception("restore_sequence", std::current_exception());
    }
    if (filled.ok()) return sequence;
    DSV4RT_RETURN_IF_ERROR(engine.manager->release(sequence));
    DSV4RT_RETURN_IF_ERROR(engine.reclaim({&slot, 1}));
    return engine.latch_if_broken(std::move(filled));
  });
}

}  // namespace dsv4rt

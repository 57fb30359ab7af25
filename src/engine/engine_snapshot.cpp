// Engine::save_sequence and Engine::restore_sequence: cache rows between the backend and snapshots.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"
#include "engine/sequence_snapshot.h"
#include "engine/snapshot_reader.h"

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

// Rows [first, first + rows) of a sequence, block by block.
std::vector<RowRun> paged_runs(const CacheTable& table, const BlockShape& shape, std::span<const BlockId> blocks,
                               std::int64_t first, std::int64_t rows) {
  std::vector<RowRun> runs;
  while (rows > 0) {
    const BlockId block = blocks[static_cast<std::size_t>(first / shape.rows)];
    const std::int64_t row = first % shape.rows;
    const std::int64_t count = std::min<std::int64_t>(rows, shape.rows - row);
    runs.push_back({table.blocks + block.value * table.block_bytes, row, count});
    first += count;
    rows -= count;
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

// Of a piece that adds to `base_length` tokens; 0 for a whole one.
std::vector<SectionRegion> section_regions(const CacheParts& parts, std::int64_t base_length, std::int64_t length) {
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
        section.first_row = base_length / spec.ratio;
        section.rows = length / spec.ratio - section.first_row;
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
                      region.section.first_row, region.section.rows);
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

// The rows of one section, from the reader to where they belong.
Status fill_section(const CacheParts& parts, const SectionRegion& region, SequenceId sequence, RowMover& mover,
                    SnapshotReader& reader) {
  DSV4RT_RETURN_IF_ERROR(reader.begin_section(region.section));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<RowRun> runs, runs_of(parts, region, sequence));
  for (const RowRun& run : runs) {
    DSV4RT_ASSIGN_OR_RETURN(const auto rows, reader.rows(run.rows * region.shape.row_bytes()));
    DSV4RT_RETURN_IF_ERROR(mover.upload(region.shape, run, rows.data()));
  }
  return reader.end_section();
}

// Reads everything, block by block, and keeps nothing.
Status check_section_rows(const SectionRegion& region, SnapshotReader& reader) {
  DSV4RT_RETURN_IF_ERROR(reader.begin_section(region.section));
  for (std::int64_t rest = region.section.rows; rest > 0;) {
    const std::int64_t rows = std::min<std::int64_t>(rest, region.shape.rows);
    DSV4RT_RETURN_IF_ERROR(reader.rows(rows * region.shape.row_bytes()).status());
    rest -= rows;
  }
  return reader.end_section();
}

// Checks every piece of a snapshot and changes nothing.
Status check_snapshot(const CacheParts& parts, SnapshotReader& reader) {
  for (;;) {
    DSV4RT_ASSIGN_OR_RETURN(const std::optional<SnapshotPiece> piece, reader.next_piece());
    if (!piece) return {};
    for (const SectionRegion& region : section_regions(parts, piece->base_length, piece->length)) {
      DSV4RT_RETURN_IF_ERROR(check_section_rows(region, reader));
    }
    DSV4RT_RETURN_IF_ERROR(reader.end_piece().status());
  }
}

}  // namespace

// ---- Saving -------------------------------------------------------------------------------------

Engine::Impl::SavedSequence* Engine::Impl::saved_sequence(SequenceId sequence) noexcept {
  if (sequence.index >= last_saved.size()) return nullptr;
  SavedSequence& saved = last_saved[sequence.index];
  return saved.sequence == sequence ? &saved : nullptr;
}

void Engine::Impl::note_saved(SequenceId sequence, std::int64_t length, const Sha256::Digest& digest) noexcept {
  last_saved[sequence.index] = {.sequence = sequence, .length = length, .digest = digest};
}

void Engine::Impl::forget_saved(SequenceId sequence, std::int64_t new_length) noexcept {
  SavedSequence* saved = saved_sequence(sequence);
  if (saved != nullptr && new_length < saved->length) *saved = {};
}

Result<std::optional<SnapshotBase>> Engine::Impl::snapshot_base(const char* operation, SequenceId sequence,
                                                                std::int64_t base_tokens) {
  DSV4RT_RETURN_IF_ERROR(manager->length(sequence).status());
  DSV4RT_RETURN_IF_ERROR(check_held_here(operation, sequence));
  if (base_tokens == 0) return std::optional<SnapshotBase>();
  const SavedSequence* saved = saved_sequence(sequence);
  const std::string field = std::string(operation) + ": base_tokens = " + std::to_string(base_tokens);
  if (base_tokens < 0) {
    return Status{StatusCode::kInvalidArgument, field + "; accepted: 0 (the whole sequence) or more"};
  }
  if (saved == nullptr) {
    return Status{StatusCode::kFailedPrecondition,
                  field + ", but nothing saved of this sequence is still the beginning of it; accepted: 0 (all of it)"};
  }
  if (saved->length != base_tokens) {
    return Status{StatusCode::kFailedPrecondition, field + "; accepted: " + std::to_string(saved->length) +
                                                       " (when it was last saved) or 0 (all of it)"};
  }
  return std::optional<SnapshotBase>({.length = saved->length, .digest = saved->digest});
}

Status Engine::save_sequence(SequenceId sequence, const SnapshotSink& sink, const SnapshotOptions& snapshot) {
  return impl_->call("save_sequence", Impl::Use::kChange, [&]() -> Status {
    Impl& engine = *impl_;
    if (!sink) return {StatusCode::kInvalidArgument, "save_sequence: sink is empty; it must take the bytes"};
    DSV4RT_RETURN_IF_ERROR(check_snapshot_key("save_sequence", snapshot.key));
    DSV4RT_RETURN_IF_ERROR(engine.no_step_outstanding("save_sequence"));
    DSV4RT_ASSIGN_OR_RETURN(const std::optional<SnapshotBase> base,
                            engine.snapshot_base("save_sequence", sequence, snapshot.base_tokens));
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, engine.manager->length(sequence));
    const CacheParts parts = cache_parts(engine);
    const std::vector<SectionRegion> regions = section_regions(parts, base ? base->length : 0, length);
    RowMover mover(*engine.backend, most_run_bytes(regions));
    const SnapshotSink callers = [&](std::span<const std::byte> bytes) { return engine.call_sink(sink, bytes); };
    SnapshotWriter writer(callers, snapshot.key);
    DSV4RT_RETURN_IF_ERROR(writer.header(engine.snapshot_identity(), length, regions.size(), base));
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
    DSV4RT_ASSIGN_OR_RETURN(const Sha256::Digest digest, writer.finish());
    engine.note_saved(sequence, length, digest);
    return {};
  });
}

Result<std::int64_t> Engine::snapshot_bytes(SequenceId sequence, const SnapshotOptions& snapshot) const {
  return impl_->call("snapshot_bytes", Impl::Use::kSettle, [&]() -> Result<std::int64_t> {
    DSV4RT_RETURN_IF_ERROR(impl_->no_step_outstanding("snapshot_bytes"));
    DSV4RT_ASSIGN_OR_RETURN(const std::optional<SnapshotBase> base,
                            impl_->snapshot_base("snapshot_bytes", sequence, snapshot.base_tokens));
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, impl_->manager->length(sequence));
    const auto regions = section_regions(cache_parts(*impl_), base ? base->length : 0, length);
    return dsv4rt::snapshot_bytes(sections_of(regions), base.has_value(), snapshot.key);
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

// ---- Restoring ----------------------------------------------------------------------------------

// A sequence begins with the first piece and grows with each increment. Nobody has its id until everything was right.
Result<SequenceId> Engine::Impl::fill_from_snapshot(SnapshotReader& reader, std::int64_t reserve_tokens) {
  const CacheParts parts = cache_parts(*this);
  DSV4RT_ASSIGN_OR_RETURN(const std::optional<SnapshotPiece> first, reader.next_piece());
  DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, manager->restore_sequence(first->length, reserve_tokens));
  const StateSlotId slot = manager->slot(sequence).value();
  const auto fill = [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(reclaim());
    SnapshotPiece piece = *first;
    for (;;) {
      const std::vector<SectionRegion> regions = section_regions(parts, piece.base_length, piece.length);
      RowMover mover(*backend, most_run_bytes(regions));
      for (const SectionRegion& region : regions) {
        DSV4RT_RETURN_IF_ERROR(fill_section(parts, region, sequence, mover, reader));
      }
      DSV4RT_ASSIGN_OR_RETURN(piece, reader.end_piece());
      DSV4RT_ASSIGN_OR_RETURN(const std::optional<SnapshotPiece> next, reader.next_piece());
      if (!next) break;
      DSV4RT_RETURN_IF_ERROR(manager->extend_restored(sequence, next->length));
      DSV4RT_RETURN_IF_ERROR(reclaim());
      piece = *next;
    }
    DSV4RT_RETURN_IF_ERROR(upload_tables(parts, sequence));
    note_saved(sequence, piece.length, piece.digest);
    return {};
  };
  Status filled;
  try {
    filled = fill();
  } catch (...) {
    filled = of_exception("restore_sequence", std::current_exception());
  }
  if (filled.ok()) return sequence;
  DSV4RT_RETURN_IF_ERROR(manager->release(sequence));
  DSV4RT_RETURN_IF_ERROR(reclaim({&slot, 1}));
  return latch_if_broken(std::move(filled));
}

Result<SequenceId> Engine::restore_sequence(std::span<const std::byte> snapshot, std::int64_t reserve_tokens,
                                            const SnapshotOptions& options) {
  return impl_->call("restore_sequence", Impl::Use::kChange, [&]() -> Result<SequenceId> {
    DSV4RT_RETURN_IF_ERROR(check_snapshot_key("restore_sequence", options.key));
    const SnapshotIdentity identity = impl_->snapshot_identity();
    const std::int64_t most = impl_->options.limits.max_context_tokens;
    SnapshotMemory to_check(snapshot);
    SnapshotReader check(to_check, identity, most, options.key, SnapshotChecks::kAll);
    DSV4RT_RETURN_IF_ERROR(check_snapshot(cache_parts(*impl_), check));
    SnapshotMemory to_fill(snapshot);
    SnapshotReader reader(to_fill, identity, most, options.key, SnapshotChecks::kDone);
    return impl_->fill_from_snapshot(reader, reserve_tokens);
  });
}

Result<SequenceId> Engine::restore_sequence_from(const SnapshotSource& source, std::int64_t reserve_tokens,
                                                 const SnapshotOptions& options) {
  return impl_->call("restore_sequence_from", Impl::Use::kChange, [&]() -> Result<SequenceId> {
    Impl& engine = *impl_;
    if (!source)
      return Status{StatusCode::kInvalidArgument, "restore_sequence_from: source is empty; it must give the bytes"};
    DSV4RT_RETURN_IF_ERROR(check_snapshot_key("restore_sequence_from", options.key));
    DSV4RT_RETURN_IF_ERROR(engine.no_step_outstanding("restore_sequence_from"));
    const SnapshotIdentity identity = engine.snapshot_identity();
    const SnapshotSource callers = [&](std::span<std::byte> buffer) { return engine.call_source(source, buffer); };
    SnapshotStream stream(callers);
    SnapshotReader reader(stream, identity, engine.options.limits.max_context_tokens, options.key,
                          SnapshotChecks::kAll);
    return engine.fill_from_snapshot(reader, reserve_tokens);
  });
}

}  // namespace dsv4rt
